// Any events on any small tree, with clients that go, plans that change, and workers that come, drain and die:
// libFuzzer over src/flow/pipeline and the scheduler below it. Every root ends once, every start has finished or was
// lost, none was after its deadline, and once there are workers for all everything ends.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "flow_pipeline_fixture.h"

namespace {

// Numbers from the input; zeros behind its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  std::uint64_t operator()() {
    std::uint64_t number = 0;
    for (int i = 0; i < 3 && at_ != end_; ++i) number = number << 8 | *at_++;
    return number;
  }
  [[nodiscard]] bool more() const { return at_ != end_; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  arlo::flow::pipeline::Journeys<Bytes> journeys{Bytes(data, size)};
  while (journeys.random.more()) journeys.step();
  if (!journeys.sound() || !journeys.end() || !journeys.sound()) std::abort();
  return 0;
}
