// Chooses the tokens of a row that go on to the next stage (Tabi sections 2.3 and 4.2; to a level: ours). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace arlo::flow {

// Leaves unimportant words out on the way to the next stage (Tabi Eq. 5, section 4.2).
struct PruneSpec {
  double alpha = 0;       // a token is kept if its importance is above alpha times the mean; 0: nothing is pruned
  bool over_all = false;  // the mean includes special tokens
  bool to_level = true;   // only as far as a shorter runtime is reached, and no further
  std::int32_t min_words = 4;
  // Of a row that has no time for its runtime: words up to this alpha may go for a shorter one, and with them at most
  // this share of its importance; below `alpha`: none.
  double alpha_max = 0;
  double most_removed = 0.5;
};

// Throws std::invalid_argument, naming the field.
void validate(const PruneSpec& prune);

// The words of a vocabulary.
struct Vocabulary {
  std::vector<std::uint8_t> word_start;  // a bit for each id: it begins a word; ids beyond: they do
  std::vector<std::int64_t> special;     // ascending: ids that are no words
  std::vector<std::int64_t> keep;        // ascending: ids whose words are always kept
};

// The same text in the tokens of another vocabulary.
struct Rewording {
  const Vocabulary& vocabulary;
  std::span<const std::int64_t> ids;
};

// Writes the places of the kept tokens, ascending, to `kept`; empty: all tokens go on. `ids`, `importance`: [tokens].
// `levels`: maximum lengths of the runtimes that may run the row next, ascending; empty: time goes by tokens. Words are
// kept or left out whole; special tokens, words of `keep` and the weightiest word of each segment (the text between
// special tokens) are always kept. `to`: the tokens that places refer to, if the next stage has another vocabulary; all
// tokens go on if the words of both differ. `under`: for a row that is too long for the time left, as far as
// `alpha_max` and `most_removed` allow: the longest level below `under` is reached, or `kept` is empty.
void prune(const PruneSpec& spec, const Vocabulary& vocabulary, std::span<const std::int64_t> ids,
           std::span<const float> importance, std::span<const std::int32_t> levels, std::vector<std::uint32_t>& kept,
           const Rewording* to = nullptr, std::int32_t under = 0);

// Translates the tokens at `places` of `ids`, by words and special tokens, to places in `to`. False: the words differ
// there.
bool reword(const Vocabulary& vocabulary, std::span<const std::int64_t> ids, std::span<const std::uint32_t> places,
            const Rewording& to, std::vector<std::uint32_t>& kept);

}  // namespace arlo::flow
