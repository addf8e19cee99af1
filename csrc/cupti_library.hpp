// The one libcupti of this process, and the driver beside it.
//
// Lifecycle:
//   1. load_cupti(path) opens the libcupti that PyTorch uses and resolves every symbol we call;
//      nothing is linked, so one build serves CUPTI 12 and 13 and imports without either.
//   2. cupti() and driver() hand out tables of function pointers.
//   3. Neither library is ever closed: the driver and libcupti keep threads and exit handlers in
//      the process that would otherwise run into unmapped code.
#pragma once

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <cupti_version.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "errors.hpp"

// As cupti_activity.h has it, which asks for headers of the compiler nvcc.
extern "C" CUptiResult CUPTIAPI cuptiGetContextId(CUcontext context, std::uint32_t* contextId);

// Symbols that every CUPTI since 12.6 exports; the range profiler appeared in 12.6.
#define ROOFPROBE_CUPTI_SYMBOLS(X)                \
  X(cuptiGetVersion)                              \
  X(cuptiGetResultString)                         \
  X(cuptiGetContextId)                            \
  X(cuptiDeviceGetChipName)                       \
  X(cuptiProfilerInitialize)                      \
  X(cuptiProfilerDeInitialize)                    \
  X(cuptiProfilerDeviceSupported)                 \
  X(cuptiProfilerGetCounterAvailability)          \
  X(cuptiProfilerHostInitialize)                  \
  X(cuptiProfilerHostDeinitialize)                \
  X(cuptiProfilerHostGetSupportedChips)           \
  X(cuptiProfilerHostGetBaseMetrics)              \
  X(cuptiProfilerHostGetSubMetrics)               \
  X(cuptiProfilerHostGetMetricProperties)         \
  X(cuptiProfilerHostConfigAddMetrics)            \
  X(cuptiProfilerHostGetConfigImageSize)          \
  X(cuptiProfilerHostGetConfigImage)              \
  X(cuptiProfilerHostGetNumOfPasses)              \
  X(cuptiProfilerHostEvaluateToGpuValues)         \
  X(cuptiRangeProfilerEnable)                     \
  X(cuptiRangeProfilerDisable)                    \
  X(cuptiRangeProfilerSetConfig)                  \
  X(cuptiRangeProfilerStart)                      \
  X(cuptiRangeProfilerStop)                       \
  X(cuptiRangeProfilerPushRange)                  \
  X(cuptiRangeProfilerPopRange)                   \
  X(cuptiRangeProfilerDecodeData)                 \
  X(cuptiRangeProfilerGetCounterDataSize)         \
  X(cuptiRangeProfilerCounterDataImageInitialize) \
  X(cuptiRangeProfilerGetCounterDataInfo)         \
  X(cuptiRangeProfilerCounterDataGetRangeInfo)

namespace roofprobe {

struct CuptiLibrary {
#define ROOFPROBE_DECLARE(symbol) decltype(&::symbol) symbol = nullptr;
  ROOFPROBE_CUPTI_SYMBOLS(ROOFPROBE_DECLARE)
#undef ROOFPROBE_DECLARE
  std::string path;           // as given to load_cupti
  std::uint32_t version = 0;  // cuptiGetVersion: 26 is CUDA 12.8, 130001 is CUDA 13.0 Update 1
};

struct DriverLibrary {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) primary_retain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) primary_release = nullptr;
  decltype(&::cuCtxGetCurrent) current_context = nullptr;
  decltype(&::cuCtxGetDevice) current_device = nullptr;
  decltype(&::cuStreamGetGreenCtx) stream_green_context = nullptr;  // null before CUDA 12.4
  decltype(&::cuDriverGetVersion) driver_version = nullptr;
  decltype(&::cuGetErrorName) error_name = nullptr;
};

// Opens libcupti at `path` and keeps it for the life of the process. Loading the same path again
// is a no-op; another path throws LibraryError, since two libcuptis in a process break each other.
const CuptiLibrary& load_cupti(const std::string& path);

// The loaded libcupti; throws LibraryError when load_cupti was not called.
const CuptiLibrary& cupti();

// libcuda.so.1, opened and initialised on first use; throws LibraryError when there is no driver.
const DriverLibrary& driver();

// Throws CuptiError, with the call's name and CUPTI's own text, unless `result` is success.
void check(CUptiResult result, const char* call);

// Throws DriverError unless `result` is success.
void check_driver(CUresult result, const char* call);

// A parameter struct as CUPTI wants it: zeroed, with the struct size that this field set had in
// CUPTI 12.6. Newer headers append fields, and an older library refuses a size that it does not
// know, so the size always comes from the last field that we need.
template <typename Params>
[[nodiscard]] Params sized_params(std::size_t struct_size) {
  Params params{};
  params.structSize = struct_size;
  return params;
}

}  // namespace roofprobe

// Size of `type` up to and including `last_field`.
#define ROOFPROBE_SIZE_TO(type, last_field) (offsetof(type, last_field) + sizeof(type::last_field))
