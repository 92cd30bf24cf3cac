#include "flow/rules/prune.h"

#include <algorithm>
#include <cmath>

namespace arlo::flow {
namespace {

// Where time goes by tokens, less than this share of them saved is not worth the loss.
constexpr double kLeastSaving = 0.03;

// Of tokens that stand together; number 0 is of those that are no words, and stays.
struct Word {
  float weight = 0;  // of its most important token
  std::uint32_t segment = 0;
  std::uint32_t size = 0;
  bool kept = true;
};

// A word that is left out so far. In a heap the weightiest is on top, of equals the first.
struct Left {
  float weight;
  std::uint32_t word;
  bool operator<(const Left& other) const { return weight != other.weight ? weight < other.weight : word > other.word; }
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

// Calls each(place, special, begins a word) for every token.
template <typename Each>
void split(const Vocabulary& vocabulary, std::span<const std::int64_t> ids, Each each) {
  bool fresh = true;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool special = contains(vocabulary.special, ids[i]);
    each(i, special, !special && (fresh || begins_word(vocabulary, ids[i])));
    fresh = special;
  }
}

// The words of a text, counted from 1, and where segments end: what two vocabularies have to agree on.
struct Split {
  Split(const Vocabulary& vocabulary, std::span<const std::int64_t> ids) : word_of(ids.size()), first(1) {
    bool apart = true;
    split(vocabulary, ids, [&](std::size_t i, bool special, bool begins) {
      if (begins) first.push_back(apart);
      apart = special || (apart && !begins);
      word_of[i] = special ? 0 : static_cast<std::uint32_t>(first.size() - 1);
    });
  }
  std::vector<std::uint32_t> word_of;  // by token; 0 is of those that are no words
  std::vector<bool> first;             // by word: of its segment
};

// Half of the tokens of a text begin a word and some of the words stay, by chance as far as a processor can tell: so it
// is counted and chosen without branches. Only as many words are put in order as come back.
class Cut {
 public:
  Cut(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
      std::span<const float> importance)
      : spec_(spec), word_of_(ids.size()), words_(ids.size() + 1) {
    std::uint32_t segment = 0;
    std::size_t counted = 0;
    double sum = 0;
    double nothing = 0;  // NaN where a weight is no number
    split(vocabulary, ids, [&](std::size_t i, bool special, bool begins) {
      const float weight = importance[i];
      const bool counts = !special || spec.over_all;
      nothing += weight * 0.0;
      sum += counts ? static_cast<double>(weight) : 0;
      counted += counts ? 1 : 0;
      segment += special ? 1 : 0;
      if (special) return;
      last_ += begins ? 1 : 0;
      Word& word = words_[last_];
      word.weight = begins ? weight : std::max(word.weight, weight);
      word.segment = segment;
      ++word.size;
      word.kept = (!begins && word.kept) || contains(vocabulary.keep, ids[i]);
      word_of_[i] = last_;
    });
    segments_ = segment + 1;
    possible_ = !std::isnan(nothing) && last_ > 0;
    mean_ = counted == 0 ? 0 : sum / static_cast<double>(counted);
  }

  // The same words in other tokens: sizes and places are of these from now on. False: they are other words.
  bool onto(const Rewording& to) {
    Split there(to.vocabulary, to.ids);
    if (there.first.size() != last_ + 1) return false;
    for (std::uint32_t w = 1; w <= last_; ++w) {
      const bool first = w == 1 || words_[w].segment != words_[w - 1].segment;
      if (there.first[w] != first) return false;
      words_[w].size = 0;
    }
    for (const std::uint32_t w : there.word_of) ++words_[w].size;
    onto_ = std::move(there.word_of);
    return true;
  }

  [[nodiscard]] bool possible() const { return possible_; }
  [[nodiscard]] std::size_t size() const { return size_; }  // tokens that are kept

  // By Eq. 5 with this alpha.
  void choose(double alpha) {
    const double limit = alpha * mean_;
    std::vector<std::uint8_t> seen(segments_);
    std::vector<std::uint8_t> there(segments_);
    left_.resize(last_);
    std::size_t left = 0;
    std::int32_t some = 0;
    size_ = places().size();
    for (std::uint32_t w = 1; w <= last_; ++w) {
      Word& word = words_[w];
      const bool kept = word.kept || static_cast<double>(word.weight) > limit;
      word.kept = kept;
      seen[word.segment] |= kept ? 1 : 0;
      there[word.segment] = 1;
      some += kept ? 1 : 0;
      size_ -= kept ? 0 : word.size;
      left_[left] = {word.weight, w};
      left += kept ? 0 : 1;
    }
    left_.resize(left);
    std::make_heap(left_.begin(), left_.end());
    auto unseen = std::count(there.begin(), there.end(), 1) - std::count(seen.begin(), seen.end(), 1);
    while (!left_.empty() && (some < spec_.min_words || unseen > 0)) {
      const std::uint32_t w = weightiest();
      auto& known = seen[words_[w].segment];
      if (some >= spec_.min_words && known != 0) {
        passed_over_.push_back(w);
        continue;
      }
      unseen -= known == 0 ? 1 : 0;
      known = 1;
      ++some;
      keep(w);
    }
  }

  // Words come back, the weightiest first, as far as they fit.
  void refill(std::size_t room) {
    const auto offer = [&](std::uint32_t w) {
      if (words_[w].size > room) return;
      room -= words_[w].size;
      keep(w);
    };
    for (const std::uint32_t w : passed_over_) offer(w);
    while (room > 0 && !left_.empty()) offer(weightiest());
  }

  void write(std::vector<std::uint32_t>& kept) const {
    const auto& word_of = places();
    kept.resize(word_of.size());
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < word_of.size(); ++i) {
      kept[count] = i;
      count += words_[word_of[i]].kept ? 1 : 0;
    }
    kept.resize(count);
  }

  // Share of the words' importance that is left out.
  [[nodiscard]] double removed(std::span<const float> importance) const {
    double all = 0;
    double left = 0;
    for (std::size_t i = 0; i < word_of_.size(); ++i) {
      const double weight = word_of_[i] == 0 ? 0.0 : static_cast<double>(importance[i]);
      all += weight;
      left += words_[word_of_[i]].kept ? 0.0 : weight;
    }
    return all > 0 ? left / all : 1;
  }

 private:
  std::uint32_t weightiest() {
    std::pop_heap(left_.begin(), left_.end());
    const std::uint32_t w = left_.back().word;
    left_.pop_back();
    return w;
  }

  void keep(std::uint32_t w) {
    words_[w].kept = true;
    size_ += words_[w].size;
  }

  [[nodiscard]] const std::vector<std::uint32_t>& places() const { return onto_.empty() ? word_of_ : onto_; }

  const PruneSpec& spec_;
  std::vector<std::uint32_t> word_of_;  // by token
  std::vector<std::uint32_t> onto_;     // by token of another vocabulary
  std::vector<Word> words_;             // 0 is of those that are no words
  std::uint32_t last_ = 0;              // word
  std::uint32_t segments_ = 0;
  std::size_t size_ = 0;
  double mean_ = 0;
  bool possible_ = false;
  std::vector<Left> left_;                  // a heap
  std::vector<std::uint32_t> passed_over_;  // weightier than the words in it
};

}  // namespace

void prune(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
           std::span<const float> importance, std::span<const std::int32_t> levels, std::vector<std::uint32_t>& kept,
           const Rewording* to, std::int32_t under) {
  kept.clear();
  if (!(spec.alpha > 0) || ids.empty() || importance.size() != ids.size()) return;
  const std::size_t whole = to == nullptr ? ids.size() : to->ids.size();
  const bool stairs = spec.to_level && !levels.empty();
  const std::int32_t ideal = stairs ? level_of(levels, whole) : -1;
  if (stairs && (ideal == levels.front() || (under > 0 && under <= levels.front()))) return;  // there is none below
  if (under > 0 && (!stairs || spec.alpha_max < spec.alpha)) return;
  Cut cut(spec, vocabulary, ids, importance);
  if (!cut.possible() || (to != nullptr && !cut.onto(*to))) return;
  cut.choose(under > 0 ? spec.alpha_max : spec.alpha);
  const std::size_t size = cut.size();
  if (size == whole) return;
  if (stairs) {
    const std::int32_t level =
        under > 0 ? *std::prev(std::lower_bound(levels.begin(), levels.end(), under)) : level_of(levels, size);
    if (level < 0 || level == ideal || size > static_cast<std::size_t>(level)) return;
    cut.refill(static_cast<std::size_t>(level) - size);
    if (under > 0 && cut.removed(importance) > spec.most_removed) return;
  } else if (spec.to_level && static_cast<double>(size) > (1 - kLeastSaving) * static_cast<double>(whole)) {
    return;
  }
  cut.write(kept);
}

bool reword(const Vocabulary& vocabulary, std::span<const std::int64_t> ids, std::span<const std::uint32_t> places,
            const Rewording& to, std::vector<std::uint32_t>& kept) {
  const Split from(vocabulary, ids);
  const Split there(to.vocabulary, to.ids);
  if (from.first != there.first) return false;
  std::vector<std::uint8_t> stays(from.first.size());
  stays[0] = 1;
  for (const std::uint32_t at : places) stays[from.word_of[at]] = 1;
  kept.clear();
  for (std::uint32_t i = 0; i < there.word_of.size(); ++i) {
    if (stays[there.word_of[i]] != 0) kept.push_back(i);
  }
  return true;
}

}  // namespace arlo::flow
