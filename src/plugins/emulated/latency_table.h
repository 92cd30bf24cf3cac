#ifndef ARLO_TRITON_LATENCY_TABLE_H_
#define ARLO_TRITON_LATENCY_TABLE_H_

#include <cstdint>
#include <map>
#include <string_view>

namespace arlo::triton {

// The latency of a whole batch, in microseconds, by row width (tokens) and rows.
//
// Text form: points `length:batch:us` joined by commas, for example "64:1:1150,512:1:4860". Between two points the
// latency is linear, first over the length, then over the batch. Below the first length and past the last one it stays
// at that point's value. Below the first batch it stays there too; past the last batch it grows with the rows, because
// a batch that was not measured can't be assumed free. Immutable after Parse; safe to share between threads.
class LatencyTable {
 public:
  // Throws std::invalid_argument, saying what is wrong, for text that is not of the form above.
  static LatencyTable Parse(std::string_view text);

  // Nanoseconds for `rows` rows of `length` tokens.
  int64_t LatencyNs(int64_t length, int64_t rows) const;

  // The longest length that has a point: the width that a static runtime is charged for.
  int64_t max_length() const;

 private:
  std::map<int64_t, std::map<int64_t, int64_t>> by_batch_;  // batch -> length -> us
};

}  // namespace arlo::triton

#endif  // ARLO_TRITON_LATENCY_TABLE_H_
