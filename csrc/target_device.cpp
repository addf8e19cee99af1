#include "target_device.hpp"

namespace roofprobe {
namespace {

CUdevice device_handle(int device_index) {
  CUdevice device = 0;
  check_driver(driver().device_get(&device, device_index), "cuDeviceGet");
  return device;
}

const char* level_name(CUpti_Profiler_Support_Level level) {
  switch (level) {
    case CUPTI_PROFILER_CONFIGURATION_SUPPORTED: return "supported";
    case CUPTI_PROFILER_CONFIGURATION_UNSUPPORTED: return "unsupported";
    case CUPTI_PROFILER_CONFIGURATION_DISABLED: return "disabled";
    default: return "unknown";
  }
}

}  // namespace

PrimaryContext::PrimaryContext(int device_index) : device_(device_handle(device_index)) {
  check_driver(driver().primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() noexcept {
  try {
    check_driver(driver().primary_release(device_), "cuDevicePrimaryCtxRelease");
  } catch (const std::exception& error) {
    report_failed_cleanup("a primary context", error.what());
  }
}

void ensure_profiler_initialized() {
  static const bool initialized = [] {
    auto params = sized_params<CUpti_Profiler_Initialize_Params>(
        ROOFPROBE_SIZE_TO(CUpti_Profiler_Initialize_Params, pPriv));
    check(cupti().cuptiProfilerInitialize(&params), "cuptiProfilerInitialize");
    return true;
  }();
  static_cast<void>(initialized);
}

std::string chip_name(int device_index) {
  ensure_profiler_initialized();
  auto params = sized_params<CUpti_Device_GetChipName_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Device_GetChipName_Params, pChipName));
  params.deviceIndex = static_cast<std::size_t>(device_index);
  check(cupti().cuptiDeviceGetChipName(&params), "cuptiDeviceGetChipName");
  return params.pChipName;
}

std::map<std::string, std::string> device_support(int device_index) {
  ensure_profiler_initialized();
  auto params = sized_params<CUpti_Profiler_DeviceSupported_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_DeviceSupported_Params, api));
  params.cuDevice = device_handle(device_index);
  params.api = CUPTI_PROFILER_RANGE_PROFILING;
  check(cupti().cuptiProfilerDeviceSupported(&params), "cuptiProfilerDeviceSupported");
  return {{"overall", level_name(params.isSupported)},
          {"architecture", level_name(params.architecture)},
          {"sli", level_name(params.sli)},
          {"vgpu", level_name(params.vGpu)},
          {"confidential_compute", level_name(params.confidentialCompute)},
          {"cmp", level_name(params.cmp)},
          {"wsl", level_name(params.wsl)}};
}

AvailabilityImage counter_availability(int device_index) {
  ensure_profiler_initialized();
  const PrimaryContext context(device_index);
  auto params = sized_params<CUpti_Profiler_GetCounterAvailability_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_GetCounterAvailability_Params, pCounterAvailabilityImage));
  params.ctx = context.get();
  check(cupti().cuptiProfilerGetCounterAvailability(&params),
        "cuptiProfilerGetCounterAvailability");
  AvailabilityImage image;
  image.bytes.resize(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.bytes.data();
  check(cupti().cuptiProfilerGetCounterAvailability(&params),
        "cuptiProfilerGetCounterAvailability");
  return image;
}

std::uint32_t primary_context_id(int device_index) {
  const PrimaryContext context(device_index);
  std::uint32_t id = 0;
  check(cupti().cuptiGetContextId(context.get(), &id), "cuptiGetContextId");
  return id;
}

bool foreign_context_is_current(int device_index) {
  CUcontext current = nullptr;
  check_driver(driver().current_context(&current), "cuCtxGetCurrent");
  if (current == nullptr) return false;
  CUdevice device = 0;
  check_driver(driver().current_device(&device), "cuCtxGetDevice");
  if (device != device_handle(device_index)) return false;
  const PrimaryContext primary(device_index);
  if (current == primary.get()) return false;
  CUgreenCtx green = nullptr;
  const auto ask = driver().stream_green_context;
  return ask == nullptr || ask(CU_STREAM_LEGACY, &green) != CUDA_SUCCESS || green == nullptr;
}

int driver_version() {
  int version = 0;
  check_driver(driver().driver_version(&version), "cuDriverGetVersion");
  return version;
}

}  // namespace roofprobe
