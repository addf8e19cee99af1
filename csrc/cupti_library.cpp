#include "cupti_library.hpp"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <type_traits>

namespace roofprobe {
namespace {

std::mutex g_load_mutex;  // one loader at a time; never held while CUPTI works
std::atomic<const CuptiLibrary*> g_cupti{nullptr};  // never freed (see the header)

std::string last_dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

// The first CUPTI with the range profiler API is the one of CUDA 12.6, version 24.
std::string describe_version(std::uint32_t version) {
  if (version >= 10000) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
  }
  switch (version) {
    case 17: return "11.6";
    case 18: return "11.8";
    case 19: return "12.0";
    case 20: return "12.2";
    case 21: return "12.3";
    case 22: return "12.4";
    case 23: return "12.5";
    case 24: return "12.6";
    case 26: return "12.8";
    case 27: return "12.9";
    case 28: return "12.9 Update 1";
    default: return "API version " + std::to_string(version);
  }
}

}  // namespace

const CuptiLibrary& load_cupti(const std::string& path) {
  const std::lock_guard<std::mutex> lock(g_load_mutex);
  if (const CuptiLibrary* loaded = g_cupti.load(); loaded != nullptr) {
    if (loaded->path != path) {
      throw LibraryError("libcupti is already loaded from " + loaded->path +
                         "; a process cannot use a second copy at " + path);
    }
    return *loaded;
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw LibraryError("could not open libcupti: " + last_dl_error());
  }
  auto library = CuptiLibrary{};
  library.path = path;
  std::string missing;
#define ROOFPROBE_RESOLVE(symbol)                                                      \
  library.symbol = reinterpret_cast<decltype(library.symbol)>(dlsym(handle, #symbol)); \
  if (library.symbol == nullptr && missing.empty()) missing = #symbol;
  ROOFPROBE_CUPTI_SYMBOLS(ROOFPROBE_RESOLVE)
#undef ROOFPROBE_RESOLVE
  if (library.cuptiGetVersion != nullptr) {
    check(library.cuptiGetVersion(&library.version), "cuptiGetVersion");
  }
  if (!missing.empty()) {
    if (library.version == 0) {
      throw LibraryError(path + " is not a libcupti: it has no " + missing);
    }
    throw LibraryError(
        "libcupti at " + path + " is CUPTI " + describe_version(library.version) +
        ", which has no range profiler (" + missing +
        " is missing); a PyTorch built for CUDA 12.6 or newer brings one that works");
  }
  const auto* kept = new CuptiLibrary(library);
  g_cupti.store(kept);
  return *kept;
}

const CuptiLibrary& cupti() {
  const CuptiLibrary* loaded = g_cupti.load();
  if (loaded == nullptr) {
    throw LibraryError("libcupti is not loaded: call load_cupti(path) first");
  }
  return *loaded;
}

const DriverLibrary& driver() {
  // A function-local static: initialised once, thread-safe, and retried after an exception.
  static const DriverLibrary library = [] {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw LibraryError("no CUDA driver on this machine: " + last_dl_error());
    }
    auto table = DriverLibrary{};
    std::string missing;
    const auto resolve = [&](auto& target, const char* symbol) {
      target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(dlsym(handle, symbol));
      if (target == nullptr && missing.empty()) missing = symbol;
    };
    resolve(table.init, "cuInit");
    resolve(table.device_get, "cuDeviceGet");
    resolve(table.primary_retain, "cuDevicePrimaryCtxRetain");
    resolve(table.primary_release, "cuDevicePrimaryCtxRelease_v2");
    resolve(table.current_context, "cuCtxGetCurrent");
    resolve(table.current_device, "cuCtxGetDevice");
    resolve(table.driver_version, "cuDriverGetVersion");
    resolve(table.error_name, "cuGetErrorName");
    const std::string needed = missing;
    resolve(table.stream_green_context, "cuStreamGetGreenCtx");
    if (!needed.empty()) {
      throw LibraryError("libcuda.so.1 has no " + needed + "; is it a stub library?");
    }
    const CUresult result = table.init(0);
    if (result != CUDA_SUCCESS) {
      const char* name = nullptr;
      table.error_name(result, &name);
      throw DriverError(std::string("cuInit failed with ") +
                        (name == nullptr ? std::to_string(result) : name));
    }
    return table;
  }();
  return library;
}

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* name = nullptr;
  if (const CuptiLibrary* loaded = g_cupti.load(); loaded != nullptr) {
    loaded->cuptiGetResultString(result, &name);
  }
  throw CuptiError(call, static_cast<std::uint32_t>(result),
                   name == nullptr ? "an unknown CUPTI status" : name);
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver().error_name(result, &name);
  throw DriverError(std::string(call) + " failed with " +
                    (name == nullptr ? std::to_string(result) : name));
}

}  // namespace roofprobe
