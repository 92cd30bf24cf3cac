#ifndef ARLO_TRITON_EMULATED_RECORDS_H_
#define ARLO_TRITON_EMULATED_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace arlo::triton {

// A real model's answers for many texts, which an emulated engine repeats: the second token's id of a row is the number
// of its record. The file (arlo/workers/emulated/replayed.py writes it), little-endian:
//
//   char[8] "ARLOREC1"; int32 records, labels, tokens; float logits[records, labels], importance[records, tokens]
class Records {
 public:
  Records() = default;
  // Throws std::invalid_argument with the fault of the file.
  explicit Records(const std::string& path);

  [[nodiscard]] int64_t count() const { return count_; }  // 0: there are none
  [[nodiscard]] int64_t labels() const { return labels_; }
  // `record`: below count().
  [[nodiscard]] const float* logits(int64_t record) const { return logits_.data() + record * labels_; }
  // Returns the importance of a token; 0 beyond the recorded ones.
  [[nodiscard]] float importance(int64_t record, int64_t token) const {
    return token < tokens_ ? importance_[static_cast<size_t>(record * tokens_ + token)] : 0;
  }

 private:
  int64_t count_ = 0;
  int64_t labels_ = 0;
  int64_t tokens_ = 0;
  std::vector<float> logits_;
  std::vector<float> importance_;
};

}  // namespace arlo::triton

#endif  // ARLO_TRITON_EMULATED_RECORDS_H_
