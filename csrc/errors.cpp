#include "errors.hpp"

#include <cstdio>
#include <utility>

namespace roofprobe {

CuptiError::CuptiError(std::string call, std::uint32_t code, std::string name)
    : std::runtime_error(call + " failed with " + name + " (" + std::to_string(code) + ")"),
      call_(std::move(call)),
      code_(code),
      name_(std::move(name)) {}

void report_failed_cleanup(const char* what, const char* why) noexcept {
  std::fprintf(stderr, "roofprobe: could not release %s: %s\n", what, why);
}

}  // namespace roofprobe
