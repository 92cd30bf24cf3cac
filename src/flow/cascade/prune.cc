#include "flow/cascade/prune.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {
namespace {

// Where time goes by tokens, less than this share of them saved is not worth the loss.
constexpr double kLeastSaving = 0.03;

struct Word {
  std::uint32_t first;
  std::uint32_t size;
  std::uint32_t segment;
  double weight;  // of its most important token
  bool kept;
};

bool contains(const std::vector<std::int64_t>& sorted, std::int64_t id) {
  if (sorted.empty() || id > sorted.back() || id < sorted.front()) return false;
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

bool begins_word(const Vocabulary& vocabulary, std::int64_t id) {
  const auto at = static_cast<std::size_t>(id);
  if (id < 0 || at / 8 >= vocabulary.word_start.size()) return true;
  return ((vocabulary.word_start[at / 8] >> (at % 8)) & 1U) != 0;
}

// Shortest that takes so many; -1: none does.
std::int32_t level_of(std::span<const std::int32_t> levels, std::size_t tokens) {
  const auto at = std::lower_bound(levels.begin(), levels.end(), static_cast<std::int64_t>(tokens));
  return at == levels.end() ? -1 : *at;
}

class Cut {
 public:
  Cut(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
      std::span<const float> importance)
      : spec_(spec), total_(ids.size()) {
    special_.resize(ids.size());
    words_.reserve(ids.size());
    by_weight_.reserve(ids.size());
    std::uint32_t segment = 0;
    double sum = 0;
    for (std::uint32_t i = 0; i < ids.size(); ++i) {
      special_[i] = contains(vocabulary.special, ids[i]);
      const auto weight = static_cast<double>(importance[i]);
      if (!std::isfinite(weight)) finite_ = false;
      if (special_[i] == 0 || spec.over_all) {
        sum += weight;
        ++counted_;
      }
      if (special_[i] != 0) {
        ++segment;
        continue;
      }
      const bool always = contains(vocabulary.keep, ids[i]);
      if (words_.empty() || words_.back().segment != segment || begins_word(vocabulary, ids[i])) {
        words_.push_back({i, 1, segment, weight, always});
      } else {
        Word& word = words_.back();
        ++word.size;
        word.weight = std::max(word.weight, weight);
        word.kept = word.kept || always;
      }
    }
    limit_ = counted_ == 0 ? 0 : spec.alpha * (sum / static_cast<double>(counted_));
  }

  [[nodiscard]] bool possible() const { return finite_ && !words_.empty(); }

  void choose() {
    std::vector<bool> seen(words_.back().segment + 1);
    std::int32_t some = 0;
    for (std::uint32_t i = 0; i < words_.size(); ++i) {
      Word& word = words_[i];
      word.kept = word.kept || word.weight > limit_;
      if (word.kept) {
        seen[word.segment] = true;
        ++some;
      } else {
        by_weight_.push_back(i);
      }
    }
    std::sort(by_weight_.begin(), by_weight_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return words_[a].weight != words_[b].weight ? words_[a].weight > words_[b].weight : a < b;
    });
    for (const std::uint32_t at : by_weight_) {
      Word& word = words_[at];
      if (word.kept || (some >= spec_.min_words && seen[word.segment])) continue;
      word.kept = seen[word.segment] = true;
      ++some;
    }
  }

  [[nodiscard]] std::size_t size() const {
    std::size_t size = total_;
    for (const Word& word : words_) size -= word.kept ? 0 : word.size;
    return size;
  }

  // Words come back, the weightiest first, as far as they fit.
  void refill(std::size_t room) {
    for (const std::uint32_t at : by_weight_) {
      Word& word = words_[at];
      if (word.kept || word.size > room) continue;
      word.kept = true;
      room -= word.size;
    }
  }

  void write(std::vector<std::uint32_t>& kept) const {
    kept.reserve(size());
    auto word = words_.begin();
    for (std::uint32_t i = 0; i < total_; ++i) {
      while (word != words_.end() && word->first + word->size <= i) ++word;
      if (special_[i] != 0 || (word != words_.end() && word->kept)) kept.push_back(i);
    }
  }

 private:
  const PruneSpec& spec_;
  std::size_t total_;
  std::size_t counted_ = 0;
  double limit_ = 0;
  bool finite_ = true;
  std::vector<std::uint8_t> special_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> by_weight_;  // of those that are not kept at first
};

}  // namespace

void prune(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
           std::span<const float> importance, std::span<const std::int32_t> levels, std::vector<std::uint32_t>& kept) {
  kept.clear();
  if (!(spec.alpha > 0) || ids.empty() || importance.size() != ids.size()) return;
  const bool stairs = spec.to_level && !levels.empty();
  if (stairs && level_of(levels, ids.size()) == levels.front()) return;  // there is none below
  Cut cut(spec, vocabulary, ids, importance);
  if (!cut.possible()) return;
  cut.choose();
  const std::size_t size = cut.size();
  if (size == ids.size()) return;
  if (stairs) {
    const std::int32_t level = level_of(levels, size);
    if (level < 0 || level == level_of(levels, ids.size())) return;
    cut.refill(static_cast<std::size_t>(level) - size);
  } else if (spec.to_level && static_cast<double>(size) > (1 - kLeastSaving) * static_cast<double>(ids.size())) {
    return;
  }
  cut.write(kept);
}

}  // namespace arlo::flow
