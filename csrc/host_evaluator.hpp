// CUPTI's host side: metrics, schedules and values of a chip. Needs no GPU and no driver.
//
// Lifecycle:
//   1. HostEvaluator(chip, availability) makes one CUPTI host object.
//   2. describe() asks it; metrics(), submetrics() and schedule() use a host object of their own
//      each, because CUPTI's lists and added metrics stay in the object and pile up.
//   3. range_names() and evaluate() read a counter-data image.
//   4. The destructor frees the host object.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cupti_library.hpp"
#include "images.hpp"

namespace roofprobe {

// Owns one CUpti_Profiler_Host_Object.
class HostObject {
 public:
  HostObject(const std::string& chip, const std::optional<AvailabilityImage>& availability);
  ~HostObject() noexcept;
  HostObject(const HostObject&) = delete;
  HostObject& operator=(const HostObject&) = delete;

  [[nodiscard]] CUpti_Profiler_Host_Object* get() const noexcept { return object_; }

 private:
  CUpti_Profiler_Host_Object* object_ = nullptr;  // ours from construction to destruction
};

struct MetricDescription {
  std::string description;
  std::string hardware_unit;
  std::string unit;
  std::string kind;  // "counter", "ratio" or "throughput"
};

struct Schedule {
  ConfigImage config;
  std::size_t passes = 0;
};

// A value with the name that it belongs to; never by position.
using NamedValue = std::pair<std::string, double>;

// Chips that this libcupti knows, in its own order.
std::vector<std::string> supported_chips();

class HostEvaluator {
 public:
  explicit HostEvaluator(std::string chip,
                         std::optional<AvailabilityImage> availability = std::nullopt);

  [[nodiscard]] const std::string& chip() const noexcept { return chip_; }

  // Base names ("dram__bytes_read", no roll-up) of every counter, ratio and throughput metric.
  [[nodiscard]] std::vector<std::string> metrics() const;

  // Roll-ups and sub-metrics that exist for a base name (".sum", ".avg.per_second", ...).
  [[nodiscard]] std::vector<std::string> submetrics(const std::string& metric) const;

  [[nodiscard]] MetricDescription describe(const std::string& metric) const;

  // Config image and pass count for these metrics together. Throws CuptiError when one of them
  // cannot be scheduled on this chip (or, with an availability image, on this device).
  [[nodiscard]] Schedule schedule(const std::vector<std::string>& metrics) const;

  // Names of the ranges in an image, in index order. Nested names are joined with '/'.
  [[nodiscard]] std::vector<std::string> range_names(const CounterDataImage& image) const;

  // Values of one range. Throws ImageError for another chip's image, std::out_of_range for a
  // range that the image lacks. A value that CUPTI cannot form is NaN, as CUPTI gives it.
  [[nodiscard]] std::vector<NamedValue> evaluate(const CounterDataImage& image,
                                                 std::size_t range_index,
                                                 const std::vector<std::string>& metrics) const;

 private:
  std::size_t range_count(const CounterDataImage& image) const;

  std::string chip_;
  std::optional<AvailabilityImage> availability_;
  HostObject object_;
  mutable std::mutex mutex_;  // CUPTI does not say that a host object may be shared by threads
};

}  // namespace roofprobe
