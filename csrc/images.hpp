// CUPTI's three byte buffers, as three types that cannot be mixed up.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace roofprobe {

using Bytes = std::vector<std::uint8_t>;

// Which raw counters a context can collect; made on the device, read by the host evaluator.
struct AvailabilityImage {
  Bytes bytes;
};

// How a set of metrics is scheduled over passes; made by the host evaluator for one chip.
struct ConfigImage {
  Bytes bytes;
};

// What the hardware counted, per range. libcupti trusts these bytes: evaluating an image that was
// cut short or changed reads outside the buffer. So an image leaves and enters the process only
// sealed: with its chip, its length and a checksum in front.
class CounterDataImage {
 public:
  CounterDataImage(std::string chip, Bytes bytes)
      : chip_(std::move(chip)), bytes_(std::move(bytes)) {}

  // Reads what seal() wrote; throws ImageError when anything is missing or changed.
  static CounterDataImage unseal(const std::string& sealed);

  // magic, chip, payload length, checksum, payload.
  [[nodiscard]] std::string seal() const;

  [[nodiscard]] const std::string& chip() const noexcept { return chip_; }
  [[nodiscard]] const Bytes& bytes() const noexcept { return bytes_; }
  [[nodiscard]] Bytes& bytes() noexcept { return bytes_; }

 private:
  std::string chip_;
  Bytes bytes_;
};

}  // namespace roofprobe
