#include "images.hpp"

#include <cstring>

#include "errors.hpp"

namespace roofprobe {
namespace {

constexpr char kMagic[8] = {'R', 'P', 'C', 'D', 'I', 'M', 'G', '1'};

// Layout, little-endian: magic[8], chip[16] padded with NUL, payload length u64, checksum u64.
constexpr std::size_t kChipOffset = sizeof kMagic;
constexpr std::size_t kChipSize = 16;
constexpr std::size_t kLengthOffset = kChipOffset + kChipSize;
constexpr std::size_t kChecksumOffset = kLengthOffset + 8;
constexpr std::size_t kHeaderSize = kChecksumOffset + 8;

// FNV-1a, 64 bits (offset basis and prime as published by Fowler, Noll and Vo). It guards against
// accidents, not against an adversary who recomputes it.
std::uint64_t fnv1a(const std::uint8_t* data, std::size_t size, std::uint64_t hash) {
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 0x100000001b3ULL;
  return hash;
}

std::uint64_t checksum(const std::uint8_t* chip, const std::uint8_t* payload, std::size_t size) {
  return fnv1a(payload, size, fnv1a(chip, kChipSize, 0xcbf29ce484222325ULL));
}

void put_u64(std::string& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<char>(value >> shift & 0xff));
  }
}

std::uint64_t get_u64(const std::uint8_t* in) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | in[i];
  return value;
}

}  // namespace

std::string CounterDataImage::seal() const {
  std::uint8_t chip[kChipSize] = {};
  if (chip_.size() >= kChipSize) throw ImageError("chip name too long to seal: " + chip_);
  std::memcpy(chip, chip_.data(), chip_.size());
  std::string out(kMagic, sizeof kMagic);
  out.reserve(kHeaderSize + bytes_.size());
  out.append(reinterpret_cast<const char*>(chip), kChipSize);
  put_u64(out, bytes_.size());
  put_u64(out, checksum(chip, bytes_.data(), bytes_.size()));
  out.append(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  return out;
}

CounterDataImage CounterDataImage::unseal(const std::string& sealed) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(sealed.data());
  if (sealed.size() < kHeaderSize || std::memcmp(data, kMagic, sizeof kMagic) != 0) {
    throw ImageError("not a sealed counter-data image");
  }
  const std::uint64_t length = get_u64(data + kLengthOffset);
  const std::size_t present = sealed.size() - kHeaderSize;
  if (length != present) {
    throw ImageError("counter-data image is truncated or padded: " + std::to_string(present) +
                     " bytes where its header says " + std::to_string(length));
  }
  const std::uint8_t* payload = data + kHeaderSize;
  if (checksum(data + kChipOffset, payload, present) != get_u64(data + kChecksumOffset)) {
    throw ImageError("counter-data image is corrupted: its checksum does not match");
  }
  const auto* chip = reinterpret_cast<const char*>(data + kChipOffset);
  return CounterDataImage(std::string(chip, strnlen(chip, kChipSize)),
                          Bytes(payload, payload + present));
}

}  // namespace roofprobe
