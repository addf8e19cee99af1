// The device side before a session: context, chip, support, counter availability.
//
// Lifecycle:
//   1. PrimaryContext retains the context that PyTorch works in.
//   2. ensure_profiler_initialized() initialises CUPTI's profiler, once for the process.
//   3. chip_name(), device_support() and counter_availability() ask the device.
//   4. PrimaryContext's destructor gives the context back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cupti_library.hpp"
#include "images.hpp"

namespace roofprobe {

// One reference on a device's primary context.
class PrimaryContext {
 public:
  explicit PrimaryContext(int device_index);
  ~PrimaryContext() noexcept;
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  [[nodiscard]] CUcontext get() const noexcept { return context_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // the driver's; we hold one reference
};

// Calls cuptiProfilerInitialize the first time. Nothing of ours calls cuptiProfilerDeInitialize:
// CUPTI does not count its users, so that would end the profiler for others in the process too.
void ensure_profiler_initialized();

// CUPTI's name of the chip behind a CUDA device index, e.g. "GH100".
std::string chip_name(int device_index);

// What CUPTI says of range profiling on this device: feature -> "supported", "unsupported",
// "disabled" or "unknown". The entry "overall" sums up.
std::map<std::string, std::string> device_support(int device_index);

// Fails with CUPTI_ERROR_INSUFFICIENT_PRIVILEGES where counters are refused, and with
// CUPTI_ERROR_INVALID_PARAMETER while a session is open on the context.
AvailabilityImage counter_availability(int device_index);

// CUPTI's number of the device's primary context, as activity records carry it.
std::uint32_t primary_context_id(int device_index);

// True where what this thread launches on the device runs in a context of somebody's own
// (cuCtxCreate), which a session on the primary one does not see. It sees green contexts.
bool foreign_context_is_current(int device_index);

// The CUDA version that the driver supports, e.g. 13000.
int driver_version();

}  // namespace roofprobe
