// Errors of the native layer. Nothing here knows Python.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace roofprobe {

// A CUPTI call that did not return CUPTI_SUCCESS.
class CuptiError : public std::runtime_error {
 public:
  CuptiError(std::string call, std::uint32_t code, std::string name);

  [[nodiscard]] const std::string& call() const noexcept { return call_; }
  [[nodiscard]] std::uint32_t code() const noexcept { return code_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string call_;
  std::uint32_t code_;
  std::string name_;
};

// A CUDA driver call that did not return CUDA_SUCCESS.
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// libcupti or libcuda is missing, too old, or lacks a symbol.
class LibraryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A counter-data image that is not what was sealed: truncated, changed, or of another chip.
class ImageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Says once on stderr that a destructor could not free what it holds. Never throws.
void report_failed_cleanup(const char* what, const char* why) noexcept;

}  // namespace roofprobe
