#include "range_session.hpp"

#include <stdexcept>

namespace roofprobe {
namespace {

CUpti_RangeProfiler_Object* enable(CUcontext context) {
  ensure_profiler_initialized();
  auto params = sized_params<CUpti_RangeProfiler_Enable_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_Enable_Params, pRangeProfilerObject));
  params.ctx = context;
  check(cupti().cuptiRangeProfilerEnable(&params), "cuptiRangeProfilerEnable");
  return params.pRangeProfilerObject;
}

void disable(CUpti_RangeProfiler_Object* profiler) {
  auto params = sized_params<CUpti_RangeProfiler_Disable_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_Disable_Params, pRangeProfilerObject));
  params.pRangeProfilerObject = profiler;
  check(cupti().cuptiRangeProfilerDisable(&params), "cuptiRangeProfilerDisable");
}

Bytes make_counter_data(CUpti_RangeProfiler_Object* profiler,
                        const std::vector<std::string>& metrics, std::size_t max_ranges) {
  std::vector<const char*> names;
  names.reserve(metrics.size());
  for (const auto& metric : metrics) names.push_back(metric.c_str());

  auto size = sized_params<CUpti_RangeProfiler_GetCounterDataSize_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_GetCounterDataSize_Params, counterDataSize));
  size.pRangeProfilerObject = profiler;
  size.pMetricNames = names.data();
  size.numMetrics = names.size();
  size.maxNumOfRanges = max_ranges;
  size.maxNumRangeTreeNodes = static_cast<std::uint32_t>(max_ranges);
  check(cupti().cuptiRangeProfilerGetCounterDataSize(&size),
        "cuptiRangeProfilerGetCounterDataSize");

  Bytes bytes(size.counterDataSize);
  auto init = sized_params<CUpti_RangeProfiler_CounterDataImage_Initialize_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, pCounterData));
  init.pRangeProfilerObject = profiler;
  init.counterDataSize = bytes.size();
  init.pCounterData = bytes.data();
  check(cupti().cuptiRangeProfilerCounterDataImageInitialize(&init),
        "cuptiRangeProfilerCounterDataImageInitialize");
  return bytes;
}

}  // namespace

RangeSession::RangeSession(int device_index, const std::string& chip,
                           const std::vector<std::string>& metrics, const ConfigImage& config,
                           std::size_t max_ranges)
    : context_(device_index),
      config_(config),
      metrics_(metrics),
      max_ranges_(max_ranges),
      counter_data_(chip, {}) {
  profiler_ = enable(context_.get());
  // The destructor does not run when a constructor throws, so this is the one place that must
  // disable by hand.
  try {
    reset();
  } catch (...) {
    try {
      disable(profiler_);
    } catch (const std::exception& error) {
      report_failed_cleanup("a half-opened range profiler", error.what());
    }
    throw;
  }
}

void RangeSession::reset() {
  require_open();
  counter_data_ =
      CounterDataImage(counter_data_.chip(), make_counter_data(profiler_, metrics_, max_ranges_));
  auto params = sized_params<CUpti_RangeProfiler_SetConfig_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_SetConfig_Params, targetNestingLevel));
  params.pRangeProfilerObject = profiler_;
  params.configSize = config_.bytes.size();
  params.pConfig = config_.bytes.data();
  params.counterDataImageSize = counter_data_.bytes().size();
  params.pCounterDataImage = counter_data_.bytes().data();
  params.range = CUPTI_UserRange;
  params.replayMode = CUPTI_UserReplay;
  params.maxRangesPerPass = max_ranges_;
  params.numNestingLevels = 1;
  params.minNestingLevel = 1;
  params.passIndex = 0;
  params.targetNestingLevel = 1;
  check(cupti().cuptiRangeProfilerSetConfig(&params), "cuptiRangeProfilerSetConfig");
}

RangeSession::~RangeSession() noexcept {
  try {
    close();
  } catch (const std::exception& error) {
    report_failed_cleanup("a range profiler session", error.what());
  }
}

void RangeSession::require_open() const {
  if (profiler_ == nullptr) throw std::logic_error("the range profiler session is closed");
}

void RangeSession::start() {
  require_open();
  auto params = sized_params<CUpti_RangeProfiler_Start_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_Start_Params, pRangeProfilerObject));
  params.pRangeProfilerObject = profiler_;
  check(cupti().cuptiRangeProfilerStart(&params), "cuptiRangeProfilerStart");
}

StopStatus RangeSession::stop() {
  require_open();
  auto params = sized_params<CUpti_RangeProfiler_Stop_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_Stop_Params, isAllPassSubmitted));
  params.pRangeProfilerObject = profiler_;
  check(cupti().cuptiRangeProfilerStop(&params), "cuptiRangeProfilerStop");
  return {params.passIndex, params.isAllPassSubmitted != 0};
}

void RangeSession::push(const std::string& name) {
  require_open();
  auto params = sized_params<CUpti_RangeProfiler_PushRange_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_PushRange_Params, pRangeName));
  params.pRangeProfilerObject = profiler_;
  params.pRangeName = name.c_str();
  check(cupti().cuptiRangeProfilerPushRange(&params), "cuptiRangeProfilerPushRange");
}

void RangeSession::pop() {
  require_open();
  auto params = sized_params<CUpti_RangeProfiler_PopRange_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_PopRange_Params, pRangeProfilerObject));
  params.pRangeProfilerObject = profiler_;
  check(cupti().cuptiRangeProfilerPopRange(&params), "cuptiRangeProfilerPopRange");
}

std::size_t RangeSession::decode() {
  require_open();
  auto params = sized_params<CUpti_RangeProfiler_DecodeData_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_DecodeData_Params, numOfRangeDropped));
  params.pRangeProfilerObject = profiler_;
  check(cupti().cuptiRangeProfilerDecodeData(&params), "cuptiRangeProfilerDecodeData");
  return params.numOfRangeDropped;
}

void RangeSession::close() {
  if (profiler_ == nullptr) return;
  CUpti_RangeProfiler_Object* profiler = std::exchange(profiler_, nullptr);
  disable(profiler);
}

}  // namespace roofprobe
