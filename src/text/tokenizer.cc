#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/utf8.h"
#include "text/unicode.h"

namespace arlo::text {

namespace {

constexpr std::size_t kSlice = 2048;  // bytes to normalise at a time
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// What one byte of ASCII is to the pre-tokenizers.
struct AsciiTraits {
  constexpr AsciiTraits() {
    for (int c = 0; c < 128; ++c) {
      const bool letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      of[c] = c == ' ' || (c >= 9 && c <= 13) ? kSpace : c > ' ' && c < 127 && !letter ? kPunctuation : 0;
    }
  }
  std::uint8_t of[128] = {};
};
constexpr AsciiTraits kAscii;

// Bytes of white space at the start of a text; at its end.
std::size_t space_before(std::string_view text) {
  std::size_t at = 0;
  for (std::size_t next = 0; next < text.size() && (traits(next_char(text, next)) & kSpace) != 0;) at = next;
  return at;
}
std::size_t space_behind(std::string_view text) {
  std::size_t size = text.size();
  while (size > 0) {
    std::size_t start = size - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
    std::size_t at = start;
    if ((traits(next_char(text, at)) & kSpace) == 0) break;
    size = start;
  }
  return text.size() - size;
}

// Returns how many tokens to keep of two texts: "longest first".
std::pair<std::size_t, std::size_t> shares(std::size_t first, std::size_t second, std::size_t room) {
  if (first + second <= room) return {first, second};
  const auto shorter = std::min(first, second);
  auto keep_short = shorter;
  auto keep_long = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (keep_short + keep_long > room) {
    keep_short = room / 2;
    keep_long = room - keep_short;
  }
  return first <= second ? std::pair{keep_short, keep_long} : std::pair{keep_long, keep_short};
}

}  // namespace

bool Tokenizer::Added::add(const AddedToken& token, std::string_view content) {
  starts_[static_cast<unsigned char>(content.front())] = true;
  tokens_.push_back(token);
  return trie_.add(root_, content, static_cast<std::int32_t>(tokens_.size() - 1));
}

template <typename Between, typename Token>
void Tokenizer::Added::part(std::string_view text, Between between, Token token) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto found = trie_.longest(root_, text.substr(at));
    if (found.size == 0) {
      ++at;
      continue;
    }
    const auto& which = tokens_[static_cast<std::size_t>(found.id)];
    auto start = at;
    at += found.size;  // not behind the space on its right: the next one may begin with white space
    if (which.takes_left) start = std::max(done, start - space_behind(text.substr(0, start)));
    if (done < start && !between(text.substr(done, start - done))) return;
    done = at + (which.takes_right ? space_before(text.substr(at)) : 0);
    if (!token(which.id, text.substr(start, done - start))) return;
  }
  if (done < text.size()) between(text.substr(done));
}

// A text's normalised form, and where in the text each byte of that comes from.
class Tokenizer::Places {
 public:
  Places(std::string_view text, std::size_t prefix, std::vector<Place>& out) : text_(text), prefix_(prefix), out_(out) {
    chars_.reserve(text.size() + 1);
    std::uint32_t chars = 0;
    for (const char c : text) {
      if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) ++chars;
      chars_.push_back(chars - 1);
    }
    chars_.push_back(chars);
  }

  // The next normalised part is this part of the text.
  std::vector<std::uint32_t>& normalizes(std::string_view part) {
    origins_.clear();
    from_ = 0;
    part_ = static_cast<std::size_t>(part.data() - text_.data());
    return origins_;
  }
  // Bytes are counted from there on.
  void from(std::size_t at) { from_ = at; }
  void of_text(std::string_view token) {
    const auto at = static_cast<std::size_t>(token.data() - text_.data());
    out_.push_back({chars_[at], chars_[at + token.size()]});
  }
  // Bytes of the normalised form: each comes from one character of the text.
  void of_normalized(std::size_t at, std::size_t size) {
    at += from_;
    out_.push_back({chars_[part_ + origins_[at]], chars_[part_ + origins_[at + size - 1]] + 1});
  }
  // A word of it has become these.
  void of_word(std::size_t at, std::size_t size, const std::int32_t* ids, std::size_t count,
               const std::vector<std::string>& written) {
    if (count == 1) return of_normalized(at, size);  // one that is unknown stands for all of it
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = written[static_cast<std::size_t>(ids[i])].size() - (i == 0 ? 0 : prefix_);
      of_normalized(at, bytes);
      at += bytes;
    }
  }

 private:
  const std::string_view text_;
  const std::size_t prefix_;
  std::vector<Place>& out_;
  std::vector<std::uint32_t> chars_;    // before each byte of the text, of the character that it belongs to
  std::vector<std::uint32_t> origins_;  // of each byte of the normalised form: a byte of the part
  std::size_t part_ = 0;                // where that begins
  std::size_t from_ = 0;
};

void Tokenizer::words(std::string_view text, Ids& ids, Places* places) const {
  const auto encode_word = [&](std::size_t at, std::size_t size) {
    const auto before = ids.size();
    words_.encode(text.substr(at, size), ids);
    if (places != nullptr) places->of_word(at, size, ids.data() + before, ids.size() - before, written_);
  };
  if (split_ == Split::kNone) {
    if (!text.empty()) encode_word(0, text.size());
    return;
  }
  std::size_t word = 0;  // where the present one began
  const auto end_word = [&](std::size_t at) {
    if (at > word) encode_word(word, at - word);
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto start = at;
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto has = byte < 0x80 ? kAscii.of[static_cast<unsigned char>(text[at++])] : traits(next_char(text, at));
    if ((has & (kSpace | kPunctuation)) == 0) continue;
    if ((has & kSpace) != 0) {
      end_word(start);
    } else if (split_ == Split::kBert) {
      end_word(start);
      encode_word(start, at - start);
    } else {
      continue;
    }
    word = at;
  }
  end_word(text.size());
}

void Tokenizer::plain(std::string_view text, std::size_t most, Ids& ids, Places* places) const {
  thread_local std::string normalized;
  const auto normalize = [&](std::string_view part) {
    normalized.clear();
    normalizer_.normalize(part, normalized, places == nullptr ? nullptr : &places->normalizes(part));
  };
  if (!in_normalized_.empty()) {
    normalize(text);
    in_normalized_.part(
        normalized,
        [&](std::string_view between) {
          if (places != nullptr) places->from(static_cast<std::size_t>(between.data() - normalized.data()));
          words(between, ids, places);
          return ids.size() < most;
        },
        [&](std::int32_t id, std::string_view token) {
          ids.push_back(id);
          if (places != nullptr) {
            places->from(0);
            places->of_normalized(static_cast<std::size_t>(token.data() - normalized.data()), token.size());
          }
          return ids.size() < most;
        });
    return;
  }
  // In pieces that begin at white space, because a long text may be cut after few words.
  while (!text.empty() && ids.size() < most) {
    auto size = text.size();
    if (split_ != Split::kNone && size > kSlice) size = std::min(size, text.find_first_of(" \n", kSlice));
    normalize(text.substr(0, size));
    words(normalized, ids, places);
    text.remove_prefix(size);
  }
}

void Tokenizer::tokens(std::string_view text, std::size_t most, Ids& ids, Places* places) const {
  in_text_.part(
      text,
      [&](std::string_view between) {
        plain(between, most, ids, places);
        return ids.size() < most;
      },
      [&](std::int32_t id, std::string_view token) {
        ids.push_back(id);
        if (places != nullptr) places->of_text(token);
        return ids.size() < most;
      });
}

std::size_t Tokenizer::special_tokens(bool pair) const {
  std::size_t count = 0;
  for (const auto& slot : pair ? pair_ : single_) count += slot.ids.size();
  return count;
}

MaybeFault Tokenizer::encode(std::string_view text, std::optional<std::string_view> second, const Limits& limits,
                             Encoding& out) const {
  out.ids.clear();
  out.type_ids.clear();
  out.places.clear();
  out.cut = false;
  if (!valid_utf8(text) || (second && !valid_utf8(*second))) return invalid("the text is not UTF-8");
  const auto added = limits.add_special ? special_tokens(second.has_value()) : 0;
  auto room = kAll;
  if (limits.most_tokens != 0) {
    if (limits.most_tokens < added + (second ? 2 : 1)) {
      return invalid(std::to_string(limits.most_tokens) + " tokens leave no room for text beside " +
                     std::to_string(added) + " special ones");
    }
    room = limits.most_tokens - added;
  }

  thread_local Ids first_ids;
  thread_local Ids second_ids;
  first_ids.clear();
  second_ids.clear();
  // More than its start is only needed if the end counts, or to find the longer of two.
  std::vector<Place> found;
  std::optional<Places> places;
  if (limits.with_places && !second) places.emplace(text, prefix_size_, found);
  tokens(text, room == kAll || limits.keep_end || second ? kAll : room + 1, first_ids, places ? &*places : nullptr);
  if (second) tokens(*second, kAll, second_ids, nullptr);
  const auto [keep_first, keep_second] = shares(first_ids.size(), second_ids.size(), room);
  out.cut = keep_first < first_ids.size() || keep_second < second_ids.size();

  const auto put = [&](const Ids& ids, std::size_t keep, std::uint8_t type) {
    const auto from = limits.keep_end ? ids.end() - static_cast<std::ptrdiff_t>(keep) : ids.begin();
    out.ids.insert(out.ids.end(), from, from + static_cast<std::ptrdiff_t>(keep));
    out.type_ids.resize(out.ids.size(), type);
  };
  for (const auto& slot : second ? pair_ : single_) {
    switch (slot.what) {
      case Slot::What::kFirst:
        put(first_ids, keep_first, slot.type);
        if (places) {
          const auto from = limits.keep_end ? found.end() - static_cast<std::ptrdiff_t>(keep_first) : found.begin();
          out.places.insert(out.places.end(), from, from + static_cast<std::ptrdiff_t>(keep_first));
        }
        break;
      case Slot::What::kSecond:
        put(second_ids, keep_second, slot.type);
        break;
      case Slot::What::kSpecial:
        if (!limits.add_special) break;
        put(slot.ids, slot.ids.size(), slot.type);
        if (places) out.places.resize(out.ids.size());
    }
  }
  return {};
}

namespace {

// The replacements of the package's WordPiece decoder, in its order.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kTidied{{{" .", "."},
                                                                                 {" ?", "?"},
                                                                                 {" !", "!"},
                                                                                 {" ,", ","},
                                                                                 {" ' ", "'"},
                                                                                 {" n't", "n't"},
                                                                                 {" 'm", "'m"},
                                                                                 {" do not", " don't"},
                                                                                 {" 's", "'s"},
                                                                                 {" 've", "'ve"},
                                                                                 {" 're", "'re"}}};

void tidy(std::string& text) {
  for (const auto& [from, to] : kTidied) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
}

}  // namespace

void Tokenizer::wrap(const std::int32_t* ids, std::size_t count, Ids& out) const {
  for (const auto& slot : single_) {
    if (slot.what == Slot::What::kSpecial) out.insert(out.end(), slot.ids.begin(), slot.ids.end());
    if (slot.what == Slot::What::kFirst) out.insert(out.end(), ids, ids + count);
  }
}

std::string_view Tokenizer::token(std::int32_t id) const {
  const auto at = static_cast<std::size_t>(id);
  return id >= 0 && at < written_.size() ? std::string_view(written_[at]) : std::string_view();
}

std::string Tokenizer::decode(const Ids& ids, bool skip_special) const {
  std::string text;
  std::string piece;
  bool first = true;
  for (const auto id : ids) {
    const auto written = token(id);
    if (written.empty() || (skip_special && special(id))) continue;
    if (std::exchange(first, false)) {
      piece = written;
    } else if (continues_ && written.starts_with(*continues_)) {
      piece = written.substr(continues_->size());
    } else {
      piece = " ";
      piece += written;
    }
    if (tidies_) tidy(piece);
    text += piece;
  }
  return text;
}

}  // namespace arlo::text
