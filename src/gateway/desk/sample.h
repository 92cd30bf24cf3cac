// A sample of a cascade's traffic: the stages' answers for rows whose last stage's answer is known, for `arlo fit
// --from`. Rows that end early are in it when they are audited (audit.h); rows that reach the last stage are drawn by
// the same chance at the same moments. So it is a fair sample of all rows that came while the last stage had room.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/fleet/cascade.h"

namespace arlo::gateway {

struct SampledRow {
  std::int32_t length = 0;                                        // tokens, before any were left out
  std::int32_t pruned = 0;                                        // tokens that the last stage did not see
  double share = 0;                                               // probability with which it was drawn
  std::uint64_t at_ms = 0;                                        // Unix time
  std::vector<std::pair<std::int32_t, std::vector<float>>> said;  // (stage, raw logits) pairs, ascending
};

// The last rows of one cascade, up to a fixed number. Under the router's lock; the rows themselves never change.
class Sample {
 public:
  static constexpr std::size_t kMostRows = 20'000;
  static constexpr std::size_t kMostNumbers = 2'000'000;  // logits, of all rows: 8 MB

  using Rows = std::deque<std::shared_ptr<const SampledRow>>;

  // Adds a row, after dropping rows of a cascade with other stages or labels.
  void add(const Cascade& cascade, std::shared_ptr<const SampledRow> row);
  [[nodiscard]] const Rows& rows() const { return rows_; }

 private:
  Rows rows_;
  std::size_t numbers_ = 0;
  std::vector<std::string> of_;  // stages, then labels
};

// Adds the last stage's answer to the unpruned row.
void last_said(SampledRow& row, std::int32_t stage, std::string_view logits);

void fill_sample(const Sample::Rows& rows, v1::GetSampleReply* out);

}  // namespace arlo::gateway
