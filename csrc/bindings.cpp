// roofprobe._native: type conversion, GIL release and error translation, nothing else.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "cupti_library.hpp"
#include "host_evaluator.hpp"
#include "images.hpp"
#include "range_session.hpp"
#include "target_device.hpp"

namespace py = pybind11;
using namespace roofprobe;  // NOLINT: this file is the module

namespace {

// Every function that may block or enter CUPTI or the driver runs without the GIL.
using NoGil = py::call_guard<py::gil_scoped_release>;

// CUPTI clean-up in a destructor must not hold the GIL either.
struct DeleteWithoutGil {
  template <typename T>
  void operator()(T* object) const {
    const py::gil_scoped_release release;
    delete object;
  }
};
template <typename T>
using NoGilPtr = std::unique_ptr<T, DeleteWithoutGil>;

py::bytes to_bytes(const std::string& data) { return {data.data(), data.size()}; }

void register_errors(py::module_& m) {
  static py::exception<CuptiError> cupti_error(m, "CuptiError", PyExc_RuntimeError);
  py::register_exception<DriverError>(m, "DriverError", PyExc_RuntimeError);
  py::register_exception<LibraryError>(m, "LibraryError", PyExc_RuntimeError);
  py::register_exception<ImageError>(m, "ImageError", PyExc_ValueError);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const CuptiError& error) {
      py::object instance = py::handle(cupti_error)(error.what());
      instance.attr("call") = error.call();
      instance.attr("code") = error.code();
      instance.attr("name") = error.name();
      PyErr_SetObject(cupti_error.ptr(), instance.ptr());
    }
  });
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "CUPTI range profiler, host evaluator and target device";
  m.attr("BUILT_WITH_CUPTI") = CUPTI_API_VERSION;
  register_errors(m);

  m.def("load_cupti", [](const std::string& path) { return load_cupti(path).version; }, NoGil());
  m.def("cupti_path", [] { return cupti().path; });
  m.def("cupti_version", [] { return cupti().version; });
  m.def("driver_version", &driver_version, NoGil());
  m.def("raise_status", [](int code) { check(static_cast<CUptiResult>(code), "raise_status"); });

  py::class_<AvailabilityImage>(m, "AvailabilityImage")
      .def("__len__", [](const AvailabilityImage& image) { return image.bytes.size(); });
  py::class_<ConfigImage>(m, "ConfigImage").def("__len__", [](const ConfigImage& image) {
    return image.bytes.size();
  });
  py::class_<CounterDataImage>(m, "CounterDataImage")
      .def_property_readonly("chip", &CounterDataImage::chip)
      .def("seal", [](const CounterDataImage& image) { return to_bytes(image.seal()); })
      .def_static("unseal", [](const py::bytes& data) { return CounterDataImage::unseal(data); })
      .def("__len__", [](const CounterDataImage& image) { return image.bytes().size(); });

  m.def("supported_chips", &supported_chips, NoGil());
  m.def("chip_name", &chip_name, NoGil());
  m.def("device_support", &device_support, NoGil());
  m.def("primary_context_id", &primary_context_id, NoGil());
  m.def("foreign_context_is_current", &foreign_context_is_current, NoGil());
  m.def("counter_availability", &counter_availability, NoGil());

  py::class_<MetricDescription>(m, "MetricDescription")
      .def_readonly("description", &MetricDescription::description)
      .def_readonly("hardware_unit", &MetricDescription::hardware_unit)
      .def_readonly("unit", &MetricDescription::unit)
      .def_readonly("kind", &MetricDescription::kind);
  py::class_<Schedule>(m, "Schedule")
      .def_readonly("config", &Schedule::config)
      .def_readonly("passes", &Schedule::passes);
  py::class_<HostEvaluator, NoGilPtr<HostEvaluator>>(m, "HostEvaluator")
      .def(py::init<std::string, std::optional<AvailabilityImage>>(), py::arg("chip"),
           py::arg("availability") = py::none(), NoGil())
      .def_property_readonly("chip", &HostEvaluator::chip)
      .def("metrics", &HostEvaluator::metrics, NoGil())
      .def("submetrics", &HostEvaluator::submetrics, NoGil())
      .def("describe", &HostEvaluator::describe, NoGil())
      .def("schedule", &HostEvaluator::schedule, NoGil())
      .def("range_names", &HostEvaluator::range_names, NoGil())
      .def("evaluate", &HostEvaluator::evaluate, NoGil());

  py::class_<StopStatus>(m, "StopStatus")
      .def_readonly("next_pass", &StopStatus::next_pass)
      .def_readonly("all_passes_submitted", &StopStatus::all_passes_submitted);
  py::class_<RangeSession, NoGilPtr<RangeSession>>(m, "RangeSession")
      .def(py::init<int, const std::string&, const std::vector<std::string>&, const ConfigImage&,
                    std::size_t>(),
           py::arg("device_index"), py::arg("chip"), py::arg("metrics"), py::arg("config"),
           py::arg("max_ranges"), NoGil())
      .def("reset", &RangeSession::reset, NoGil())
      .def("start", &RangeSession::start, NoGil())
      .def("stop", &RangeSession::stop, NoGil())
      .def("push", &RangeSession::push, NoGil())
      .def("pop", &RangeSession::pop, NoGil())
      .def("decode", &RangeSession::decode, NoGil())
      .def("counter_data", &RangeSession::counter_data, NoGil())
      .def("close", &RangeSession::close, NoGil());
}
