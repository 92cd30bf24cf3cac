// Turns text into token ids, equal to those of the `tokenizers` package for the same tokenizer.json. Pure.
//
// Known: the model WordPiece, with BertNormalizer or none; BertPreTokenizer, WhitespaceSplit or none;
// TemplateProcessing, BertProcessing, RobertaProcessing or none; added tokens without `single_word`. Any other part of
// a file is refused by name: such a file is for the package. Padding and truncation are the caller's choice here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/fault.h"
#include "text/unicode.h"
#include "text/wordpiece.h"

namespace arlo::text {

// Of a token: the characters of the text that it stands for. Both 0: none, for it was added.
struct Place {
  std::uint32_t start = 0;
  std::uint32_t stop = 0;
};

struct Encoding {
  Ids ids;
  std::vector<std::uint8_t> type_ids;
  std::vector<Place> places;  // where they are asked for
  bool cut = false;           // there was more text than fits
};

struct Limits {
  std::size_t most_tokens = 0;  // special ones included; 0: any number
  bool keep_end = false;        // of a text that is cut; otherwise its start
  bool add_special = true;
  bool with_places = false;  // of a single text; slower
};

// An element of the template around the ids of a text.
struct Slot {
  enum class What : std::uint8_t { kFirst, kSecond, kSpecial } what;
  std::uint8_t type = 0;
  Ids ids;  // of a special one
};
using Template = std::vector<Slot>;

// An added token: found in the text itself, or after it was normalised.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool takes_left = false;   // white space before it
  bool takes_right = false;  // white space behind it
  bool normalized = false;
};

enum class Split : std::uint8_t { kNone, kSpace, kBert };

// Never changed after it is made: for any number of threads.
class Tokenizer {
 public:
  // `json`: the bytes of a tokenizer.json. INVALID_ARGUMENT: they are none; UNIMPLEMENTED: one that is not known here.
  static MaybeFault read(std::string_view json, Tokenizer& out);

  // Writes the tokens of a text, or of a pair, to `out`, whose memory is reused. Above `most_tokens`, they are cut by
  // "longest first": of a pair the longer text is cut first. INVALID_ARGUMENT: no UTF-8, or no room for text.
  MaybeFault encode(std::string_view text, std::optional<std::string_view> second, const Limits& limits,
                    Encoding& out) const;

  // Appends ids of a text with the special tokens around a single one.
  void wrap(const std::int32_t* ids, std::size_t count, Ids& out) const;
  // Returns the written form of a token; empty for an unknown id.
  [[nodiscard]] std::string_view token(std::int32_t id) const;
  [[nodiscard]] bool special(std::int32_t id) const { return special_.contains(id); }
  // Returns the text of ids, as the file's decoder joins it.
  [[nodiscard]] std::string decode(const Ids& ids, bool skip_special) const;

  // The file's truncation: by default, texts that are too long are cut on the left.
  [[nodiscard]] bool cuts_left() const { return cuts_left_; }
  [[nodiscard]] std::size_t special_tokens(bool pair) const;  // that are added to a text, or to a pair
  [[nodiscard]] std::size_t vocabulary_size() const { return vocabulary_size_; }

 private:
  friend class Reader;

  class Places;  // where tokens stand; null in what follows: it is not asked for

  // Appends the tokens of a text; it may stop after `most` of them.
  void tokens(std::string_view text, std::size_t most, Ids& ids, Places* places) const;
  // Of one without tokens to be found in the text itself.
  void plain(std::string_view text, std::size_t most, Ids& ids, Places* places) const;
  void words(std::string_view normalized, Ids& ids, Places* places) const;

  // A set of added tokens, and how they part a text.
  class Added {
   public:
    bool add(const AddedToken& token, std::string_view content);
    [[nodiscard]] bool empty() const { return tokens_.empty(); }
    // Calls between(text) and token(id, text with the white space that it takes) in turn, until one says false.
    template <typename Between, typename Token>
    void part(std::string_view text, Between between, Token token) const;

   private:
    Trie trie_;
    Trie::Node root_ = trie_.add_root();
    bool starts_[256] = {};  // bytes that a token may begin with
    std::vector<AddedToken> tokens_;
  };

  Normalizer normalizer_;
  Split split_ = Split::kBert;
  WordPiece words_;
  Added in_text_;
  Added in_normalized_;
  Template single_;
  Template pair_;
  std::size_t vocabulary_size_ = 0;
  bool cuts_left_ = false;
  std::size_t prefix_size_ = 0;               // bytes that mark the pieces of a word but its first
  std::vector<std::string> written_;          // by id
  std::unordered_set<std::int32_t> special_;  // added tokens that are no text
  std::optional<std::string> continues_;      // prefix of what a decoder joins to the word before; none: no decoder
  bool tidies_ = false;                       // and takes white space away before punctuation
};

}  // namespace arlo::text
