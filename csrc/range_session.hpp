// One range-profiler session on a device's primary context, in user range and user replay mode.
//
// Lifecycle:
//   1. RangeSession(...) enables the range profiler, sizes and initialises the counter data, sets
//      the config.
//   2. For each pass: start(), then push(name), [work], synchronize, pop() for each range, then
//      stop(); repeat the same work until stop() says that all passes are submitted.
//   3. decode() moves the counts into the counter data and says how many ranges were dropped.
//   4. counter_data() hands out the image; close() or the destructor disables the profiler. It
//      must happen on every way out: a session that stays open makes every later one fail.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "cupti_library.hpp"
#include "images.hpp"
#include "target_device.hpp"

namespace roofprobe {

struct StopStatus {
  std::size_t next_pass = 0;  // the pass that the next start() collects
  bool all_passes_submitted = false;
};

class RangeSession {
 public:
  RangeSession(int device_index, const std::string& chip, const std::vector<std::string>& metrics,
               const ConfigImage& config, std::size_t max_ranges);
  ~RangeSession() noexcept;
  RangeSession(const RangeSession&) = delete;
  RangeSession& operator=(const RangeSession&) = delete;

  // Begins the set of passes anew, with empty counter data and the same config.
  void reset();

  void start();
  [[nodiscard]] StopStatus stop();
  void push(const std::string& name);
  void pop();

  // Returns the number of ranges whose counts were lost.
  [[nodiscard]] std::size_t decode();

  [[nodiscard]] CounterDataImage counter_data() const { return counter_data_; }

  // Disables the profiler; throws when CUPTI refuses. A second call does nothing.
  void close();

 private:
  void require_open() const;

  PrimaryContext context_;
  ConfigImage config_;  // CUPTI keeps pointers into this and into the counter data until close()
  std::vector<std::string> metrics_;
  std::size_t max_ranges_;
  CounterDataImage counter_data_;
  CUpti_RangeProfiler_Object* profiler_ = nullptr;  // CUPTI's, from enable to disable
};

static_assert(std::is_nothrow_destructible_v<RangeSession>);

}  // namespace roofprobe
