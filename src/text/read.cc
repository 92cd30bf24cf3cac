// Reads tokenizer.json. Unknown parts are refused by name; parts not read here have no effect on ids.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace arlo::text {
namespace {

using Json = nlohmann::json;

const Json kNull;

const Json& at(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}

bool flag(const Json& object, const char* key, bool absent = false) {
  const auto& value = at(object, key);
  return value.is_boolean() ? value.get<bool>() : absent;
}

std::string word(const Json& value, const std::string& absent = {}) {
  return value.is_string() ? value.get<std::string>() : absent;
}

std::optional<std::int32_t> number(const Json& value) {
  if (!value.is_number_integer()) return {};
  const auto found = value.get<std::int64_t>();
  if (found < 0 || found > std::numeric_limits<std::int32_t>::max()) return {};
  return static_cast<std::int32_t>(found);
}

Fault unknown(const std::string& what) {
  return {Code::kUnimplemented, "this tokenizer.json has " + what + ", which the gateway's tokenizer does not know"};
}

// Finds which of `known` the part `key` of the file is, the first meaning that there is none; otherwise a fault.
MaybeFault kind(const Json& file, const char* key, std::initializer_list<const char*> known, std::size_t* which) {
  const auto& part = at(file, key);
  const auto type = part.is_null() ? std::string() : word(at(part, "type"), "no type");
  const auto found = std::find(known.begin(), known.end(), type);
  if (found == known.end()) return unknown(std::string("the ") + key + " " + arlo::quoted(type));
  *which = static_cast<std::size_t>(found - known.begin());
  return {};
}

}  // namespace

class Reader {
 public:
  Reader(const Json& file, Tokenizer& made) : file_(file), made_(made) {}

  MaybeFault read() {
    if (auto fault = read_model()) return fault;
    if (auto fault = read_normalizer()) return fault;
    if (auto fault = read_split()) return fault;
    if (auto fault = read_added()) return fault;
    read_written();
    return read_template();
  }

 private:
  MaybeFault read_model() {
    const auto& model = at(file_, "model");
    std::size_t which = 0;
    if (auto fault = kind(file_, "model", {"WordPiece"}, &which)) return fault;
    const auto& entries = at(model, "vocab");
    if (!entries.is_object()) return invalid("the model of this tokenizer.json has no vocab");
    std::vector<WordPiece::Piece> pieces;
    pieces.reserve(entries.size());
    for (const auto& [text, value] : entries.items()) {
      const auto id = number(value);
      if (!id) return invalid("the vocab of this tokenizer.json has a number that is none for " + arlo::quoted(text));
      pieces.push_back({text, *id});
      ids_.emplace(text, *id);
    }
    made_.vocabulary_size_ = ids_.size();
    const auto unk = word(at(model, "unk_token"), "[UNK]");
    const auto unk_id = ids_.find(unk);
    if (unk_id == ids_.end()) return unknown("an unk_token " + arlo::quoted(unk) + " that its vocab lacks");
    const auto most = number(at(model, "max_input_chars_per_word")).value_or(100);
    const auto prefix = word(at(model, "continuing_subword_prefix"), "##");
    made_.prefix_size_ = prefix.size();
    if (!made_.words_.build(pieces, prefix, unk_id->second, static_cast<std::size_t>(most))) {
      return unknown("too large a vocab");
    }
    return {};
  }

  MaybeFault read_normalizer() {
    std::size_t which = 0;
    if (auto fault = kind(file_, "normalizer", {"", "BertNormalizer"}, &which)) return fault;
    if (which == 0) return {};
    const auto& part = at(file_, "normalizer");
    const bool lowercase = flag(part, "lowercase", true);
    made_.normalizer_ = {flag(part, "clean_text", true), flag(part, "handle_chinese_chars", true),
                         flag(part, "strip_accents", lowercase), lowercase};
    return {};
  }

  MaybeFault read_split() {
    std::size_t which = 0;
    if (auto fault = kind(file_, "pre_tokenizer", {"", "WhitespaceSplit", "BertPreTokenizer"}, &which)) return fault;
    made_.split_ = static_cast<Split>(which);
    return {};
  }

  MaybeFault read_added() {
    const auto& tokens = at(file_, "added_tokens");
    if (!tokens.is_array()) return {};
    std::unordered_set<std::string> seen;
    auto next = static_cast<std::int32_t>(ids_.size());
    for (const auto& each : tokens) {
      AddedToken token{word(at(each, "content")), number(at(each, "id")).value_or(-1), flag(each, "lstrip"),
                       flag(each, "rstrip"), flag(each, "normalized", !flag(each, "special"))};
      if (token.content.empty() || !seen.insert(token.content).second) continue;
      if (flag(each, "single_word"))
        return unknown("the added token " + arlo::quoted(token.content) + " with single_word");
      const auto known = ids_.find(token.content);
      if (token.id != (known != ids_.end() ? known->second : next)) {
        return unknown("the added token " + arlo::quoted(token.content) + " with an id that is not the next");
      }
      if (known == ids_.end()) {
        ++next;
        ids_.emplace(token.content, token.id);
      }
      if (flag(each, "special")) made_.special_.insert(token.id);
      std::string content = token.content;
      if (token.normalized) {
        content.clear();
        made_.normalizer_.normalize(token.content, content);
        if (content.empty())
          return unknown("the added token " + arlo::quoted(token.content) + " of which nothing is left");
      }
      if (!(token.normalized ? made_.in_normalized_ : made_.in_text_).add(token, content)) {
        return unknown("too many added tokens");
      }
    }
    made_.vocabulary_size_ = static_cast<std::size_t>(next);
    return {};
  }

  // Reads the decoder of ids into text. An unknown decoder joins tokens with spaces, as no decoder does.
  void read_written() {
    for (const auto& [text, id] : ids_) {
      const auto at_id = static_cast<std::size_t>(id);
      if (at_id > 2 * ids_.size() + 1000) continue;  // a file with holes
      if (made_.written_.size() <= at_id) made_.written_.resize(at_id + 1);
      made_.written_[at_id] = text;
    }
    const auto& decoder = at(file_, "decoder");
    if (word(at(decoder, "type")) != "WordPiece") return;
    made_.continues_ = word(at(decoder, "prefix"), "##");
    made_.tidies_ = flag(decoder, "cleanup", true);
  }

  MaybeFault read_template() {
    using What = Slot::What;
    const auto& part = at(file_, "post_processor");
    std::size_t which = 0;
    if (auto fault =
            kind(file_, "post_processor", {"", "BertProcessing", "RobertaProcessing", "TemplateProcessing"}, &which)) {
      return fault;
    }
    if (which == 3) {
      if (auto fault = slots(part, "single", 1, made_.single_)) return fault;
      return slots(part, "pair", 2, made_.pair_);
    }
    const Slot first{What::kFirst, 0, {}};
    const Slot second{What::kSecond, static_cast<std::uint8_t>(which == 2 ? 0 : 1), {}};
    made_.single_ = {first};
    made_.pair_ = {first, second};
    if (which == 0) return {};
    const auto special = [&](const char* name) {
      const auto& value = at(part, name);
      return value.is_array() && value.size() == 2 ? number(value[1]) : std::nullopt;
    };
    const auto sep = special("sep");
    const auto cls = special("cls");
    if (!sep || !cls) return invalid("the post_processor of this tokenizer.json has no sep or cls");
    const Slot start{What::kSpecial, 0, {*cls}};
    const Slot end{What::kSpecial, 0, {*sep}};
    const Slot last{What::kSpecial, second.type, {*sep}};
    made_.single_ = {start, first, end};
    made_.pair_ =
        which == 1 ? Template{start, first, end, second, last} : Template{start, first, end, end, second, last};
    return {};
  }

  // A template with each of its `texts` once.
  static MaybeFault slots(const Json& part, const char* key, std::size_t texts, Template& made) {
    const auto wrong = [&] { return unknown(std::string("a ") + key + " template of a form"); };
    const auto& pieces = at(part, key);
    if (!pieces.is_array()) return wrong();
    std::size_t count[2] = {0, 0};
    for (const auto& piece : pieces) {
      const auto& sequence = at(piece, "Sequence");
      const auto& special = at(piece, "SpecialToken");
      const auto& either = sequence.is_null() ? special : sequence;
      const auto type = number(at(either, "type_id"));
      const auto name = word(at(either, "id"));
      if (!type || *type > 255) return wrong();
      Slot slot{Slot::What::kSpecial, static_cast<std::uint8_t>(*type), {}};
      if (!sequence.is_null()) {
        if (name != "A" && name != "B") return wrong();
        slot.what = name == "A" ? Slot::What::kFirst : Slot::What::kSecond;
        ++count[name == "A" ? 0 : 1];
      } else {
        const auto& ids = at(at(at(part, "special_tokens"), name.c_str()), "ids");
        if (!ids.is_array()) return wrong();
        for (const auto& value : ids) {
          const auto id = number(value);
          if (!id) return wrong();
          slot.ids.push_back(*id);
        }
      }
      made.push_back(std::move(slot));
    }
    return count[0] == 1 && count[1] == texts - 1 ? MaybeFault{} : wrong();
  }

  const Json& file_;
  Tokenizer& made_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

MaybeFault Tokenizer::read(std::string_view json, Tokenizer& out) {
  const auto file = Json::parse(json, nullptr, false);
  if (!file.is_object()) return invalid("this is no tokenizer.json: it is not a JSON object");
  out = {};
  const auto truncation = file.find("truncation");
  out.cuts_left_ =
      truncation != file.end() && truncation->is_object() && truncation->value("direction", Json()) == "Left";
  return Reader(file, out).read();
}

}  // namespace arlo::text
