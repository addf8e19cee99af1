#include "host_evaluator.hpp"

#include <stdexcept>

namespace roofprobe {
namespace {

// Pointers into `names`, valid as long as `names` is.
std::vector<const char*> c_strings(const std::vector<std::string>& names) {
  std::vector<const char*> pointers;
  pointers.reserve(names.size());
  for (const auto& name : names) pointers.push_back(name.c_str());
  return pointers;
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

const char* kind_name(CUpti_MetricType type) {
  switch (type) {
    case CUPTI_METRIC_TYPE_COUNTER: return "counter";
    case CUPTI_METRIC_TYPE_RATIO: return "ratio";
    case CUPTI_METRIC_TYPE_THROUGHPUT: return "throughput";
    default: return "unknown";
  }
}

}  // namespace

HostObject::HostObject(const std::string& chip,
                       const std::optional<AvailabilityImage>& availability) {
  auto params = sized_params<CUpti_Profiler_Host_Initialize_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_Initialize_Params, pHostObject));
  params.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  params.pChipName = chip.c_str();
  params.pCounterAvailabilityImage = availability ? availability->bytes.data() : nullptr;
  check(cupti().cuptiProfilerHostInitialize(&params), "cuptiProfilerHostInitialize");
  object_ = params.pHostObject;
}

HostObject::~HostObject() noexcept {
  auto params = sized_params<CUpti_Profiler_Host_Deinitialize_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_Deinitialize_Params, pHostObject));
  params.pHostObject = object_;
  try {
    check(cupti().cuptiProfilerHostDeinitialize(&params), "cuptiProfilerHostDeinitialize");
  } catch (const std::exception& error) {
    report_failed_cleanup("a CUPTI host object", error.what());
  }
}

std::vector<std::string> supported_chips() {
  auto params = sized_params<CUpti_Profiler_Host_GetSupportedChips_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetSupportedChips_Params, ppChipNames));
  check(cupti().cuptiProfilerHostGetSupportedChips(&params), "cuptiProfilerHostGetSupportedChips");
  return {params.ppChipNames, params.ppChipNames + params.numChips};
}

HostEvaluator::HostEvaluator(std::string chip, std::optional<AvailabilityImage> availability)
    : chip_(std::move(chip)),
      availability_(std::move(availability)),
      object_(chip_, availability_) {}

std::vector<std::string> HostEvaluator::metrics() const {
  std::vector<std::string> names;
  for (const auto type :
       {CUPTI_METRIC_TYPE_COUNTER, CUPTI_METRIC_TYPE_RATIO, CUPTI_METRIC_TYPE_THROUGHPUT}) {
    // CUPTI 13.0 appends to the object's list at every call instead of starting a new one.
    const HostObject scratch(chip_, availability_);
    auto params = sized_params<CUpti_Profiler_Host_GetBaseMetrics_Params>(
        ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetBaseMetrics_Params, numMetrics));
    params.pHostObject = scratch.get();
    params.metricType = type;
    check(cupti().cuptiProfilerHostGetBaseMetrics(&params), "cuptiProfilerHostGetBaseMetrics");
    names.insert(names.end(), params.ppMetricNames, params.ppMetricNames + params.numMetrics);
  }
  return names;
}

std::vector<std::string> HostEvaluator::submetrics(const std::string& metric) const {
  const HostObject scratch(chip_, availability_);  // as above
  auto params = sized_params<CUpti_Profiler_Host_GetSubMetrics_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetSubMetrics_Params, ppSubMetrics));
  params.pHostObject = scratch.get();
  params.metricType = CUPTI_METRIC_TYPE_COUNTER;
  params.pMetricName = metric.c_str();
  check(cupti().cuptiProfilerHostGetSubMetrics(&params), "cuptiProfilerHostGetSubMetrics");
  return {params.ppSubMetrics, params.ppSubMetrics + params.numOfSubmetrics};
}

MetricDescription HostEvaluator::describe(const std::string& metric) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto params = sized_params<CUpti_Profiler_Host_GetMetricProperties_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetMetricProperties_Params, metricType));
  params.pHostObject = object_.get();
  params.pMetricName = metric.c_str();
  check(cupti().cuptiProfilerHostGetMetricProperties(&params),
        "cuptiProfilerHostGetMetricProperties");
  return {text_or_empty(params.pDescription), text_or_empty(params.pHwUnit),
          text_or_empty(params.pDimUnit), kind_name(params.metricType)};
}

Schedule HostEvaluator::schedule(const std::vector<std::string>& metrics) const {
  const HostObject scratch(chip_, availability_);
  auto names = c_strings(metrics);

  auto add = sized_params<CUpti_Profiler_Host_ConfigAddMetrics_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_ConfigAddMetrics_Params, numMetrics));
  add.pHostObject = scratch.get();
  add.ppMetricNames = names.data();
  add.numMetrics = names.size();
  check(cupti().cuptiProfilerHostConfigAddMetrics(&add), "cuptiProfilerHostConfigAddMetrics");

  auto size = sized_params<CUpti_Profiler_Host_GetConfigImageSize_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetConfigImageSize_Params, configImageSize));
  size.pHostObject = scratch.get();
  check(cupti().cuptiProfilerHostGetConfigImageSize(&size), "cuptiProfilerHostGetConfigImageSize");

  Schedule schedule;
  schedule.config.bytes.resize(size.configImageSize);
  auto fill = sized_params<CUpti_Profiler_Host_GetConfigImage_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetConfigImage_Params, pConfigImage));
  fill.pHostObject = scratch.get();
  fill.configImageSize = schedule.config.bytes.size();
  fill.pConfigImage = schedule.config.bytes.data();
  check(cupti().cuptiProfilerHostGetConfigImage(&fill), "cuptiProfilerHostGetConfigImage");

  auto passes = sized_params<CUpti_Profiler_Host_GetNumOfPasses_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_GetNumOfPasses_Params, numOfPasses));
  passes.configImageSize = schedule.config.bytes.size();
  passes.pConfigImage = schedule.config.bytes.data();
  check(cupti().cuptiProfilerHostGetNumOfPasses(&passes), "cuptiProfilerHostGetNumOfPasses");
  schedule.passes = passes.numOfPasses;
  return schedule;
}

std::size_t HostEvaluator::range_count(const CounterDataImage& image) const {
  if (image.chip() != chip_) {
    throw ImageError("counter-data image of chip " + image.chip() + " given to an evaluator of " +
                     chip_);
  }
  auto params = sized_params<CUpti_RangeProfiler_GetCounterDataInfo_Params>(
      ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_GetCounterDataInfo_Params, numTotalRanges));
  params.pCounterDataImage = image.bytes().data();
  params.counterDataImageSize = image.bytes().size();
  check(cupti().cuptiRangeProfilerGetCounterDataInfo(&params),
        "cuptiRangeProfilerGetCounterDataInfo");
  return params.numTotalRanges;
}

std::vector<std::string> HostEvaluator::range_names(const CounterDataImage& image) const {
  std::vector<std::string> names;
  const std::size_t count = range_count(image);
  for (std::size_t index = 0; index < count; ++index) {
    auto params = sized_params<CUpti_RangeProfiler_CounterData_GetRangeInfo_Params>(
        ROOFPROBE_SIZE_TO(CUpti_RangeProfiler_CounterData_GetRangeInfo_Params, rangeName));
    params.pCounterDataImage = image.bytes().data();
    params.counterDataImageSize = image.bytes().size();
    params.rangeIndex = index;
    params.rangeDelimiter = "/";
    check(cupti().cuptiRangeProfilerCounterDataGetRangeInfo(&params),
          "cuptiRangeProfilerCounterDataGetRangeInfo");
    names.push_back(text_or_empty(params.rangeName));
  }
  return names;
}

std::vector<NamedValue> HostEvaluator::evaluate(const CounterDataImage& image,
                                                std::size_t range_index,
                                                const std::vector<std::string>& metrics) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t count = range_count(image);
  if (range_index >= count) {
    throw std::out_of_range("range " + std::to_string(range_index) + " of an image with " +
                            std::to_string(count));
  }
  auto names = c_strings(metrics);
  std::vector<double> values(metrics.size());
  auto params = sized_params<CUpti_Profiler_Host_EvaluateToGpuValues_Params>(
      ROOFPROBE_SIZE_TO(CUpti_Profiler_Host_EvaluateToGpuValues_Params, pMetricValues));
  params.pHostObject = object_.get();
  params.pCounterDataImage = image.bytes().data();
  params.counterDataImageSize = image.bytes().size();
  params.rangeIndex = range_index;
  params.ppMetricNames = names.data();
  params.numMetrics = names.size();
  params.pMetricValues = values.data();
  check(cupti().cuptiProfilerHostEvaluateToGpuValues(&params),
        "cuptiProfilerHostEvaluateToGpuValues");
  std::vector<NamedValue> named;
  named.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) named.emplace_back(metrics[i], values[i]);
  return named;
}

}  // namespace roofprobe
