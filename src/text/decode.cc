// Ids back to text.
#include <array>
#include <utility>

#include "text/tokenizer.h"

namespace arlo::text {
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
