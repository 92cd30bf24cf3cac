#include "gateway/desk/sample.h"

#include "gateway/desk/judge.h"

namespace arlo::gateway {
namespace {

std::size_t numbers_of(const SampledRow& row) {
  std::size_t sum = 0;
  for (const auto& [stage, logits] : row.said) sum += logits.size();
  return sum;
}

}  // namespace

void Sample::add(const Cascade& cascade, std::shared_ptr<const SampledRow> row) {
  std::vector<std::string> of;
  of.reserve(cascade.stages.size() + cascade.labels.size());
  for (const auto& stage : cascade.stages) of.push_back(stage.model->name);
  of.insert(of.end(), cascade.labels.begin(), cascade.labels.end());
  if (of != of_) {
    rows_.clear();
    numbers_ = 0;
    of_ = std::move(of);
  }
  numbers_ += numbers_of(*row);
  rows_.push_back(std::move(row));
  while (rows_.size() > kMostRows || numbers_ > kMostNumbers) {
    numbers_ -= numbers_of(*rows_.front());
    rows_.pop_front();
  }
}

void last_said(SampledRow& row, std::int32_t stage, std::string_view logits) {
  row.said.emplace_back(stage, floats(logits));
  row.pruned = 0;
}

void fill_sample(const Sample::Rows& rows, v1::GetSampleReply* out) {
  for (const auto& row : rows) {
    auto* one = out->add_rows();
    one->set_length(static_cast<std::uint32_t>(row->length));
    one->set_pruned(static_cast<std::uint32_t>(row->pruned));
    one->set_share(row->share);
    one->set_at_ms(row->at_ms);
    for (const auto& [stage, logits] : row->said) {
      auto* said = one->add_said();
      said->set_stage(static_cast<std::uint32_t>(stage));
      said->mutable_logits()->Add(logits.begin(), logits.end());
    }
  }
}

}  // namespace arlo::gateway
