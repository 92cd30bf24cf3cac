#include "gateway/front/api/common.h"

#include <algorithm>
#include <cstring>

#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

// The maximum tokens of a row.
std::int64_t longest_of(const ModelSpec& model, const TextWishes& wishes) {
  return wishes.most_tokens == 0 ? model.longest : std::min<std::int64_t>(model.longest, wishes.most_tokens);
}

constexpr std::size_t kOverlap = 8;  // a window repeats 1/kOverlap of the previous one

void add_tensor(const InputSpec& spec, const TokenRows& rows, std::size_t width, bool mask,
                inference::ModelInferRequest* out) {
  auto* tensor = out->add_inputs();
  tensor->set_name(spec.name);
  tensor->set_datatype(spec.datatype);
  tensor->add_shape(static_cast<std::int64_t>(rows.size()));
  tensor->add_shape(static_cast<std::int64_t>(width));
  std::string raw(rows.size() * width * spec.item, '\0');
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      const std::int64_t value = mask ? 1 : rows[row][i];
      std::memcpy(raw.data() + (row * width + i) * spec.item, &value, spec.item);
    }
  }
  out->add_raw_input_contents(std::move(raw));
}

}  // namespace

MaybeFault encode_behind(const TextSpec& spec, std::string_view prompt, const std::vector<std::string>& texts,
                         const text::Limits& limits, text::Job* job, std::vector<text::Encoding>* out) {
  std::vector<std::string> whole;
  if (!prompt.empty()) {
    for (const auto& text : texts) whole.push_back(std::string(prompt) + text);
  }
  const auto& from = prompt.empty() ? texts : whole;
  return encode_texts(spec, {from.begin(), from.end()}, {}, limits, job, out);
}

MaybeFault check_text(const ModelSpec& model) {
  if (model.takes_text()) return {};
  return invalid("model '" + model.name + "' takes token ids and no text: " +
                 (model.text == nullptr ? "it was compiled without a tokenizer"
                                        : "its tokenizer is not one of the gateway's: " + model.text->no_text));
}

MaybeFault tokenize(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                    const TextWishes& wishes, text::Job* job, TokenRows* out) {
  if (auto fault = check_text(model)) return fault;
  const bool may_cut = wishes.truncate == "START" || wishes.truncate == "END" || wishes.truncate == "CUT";
  const bool left = wishes.truncate == "START" || (wishes.truncate == "CUT" && model.text->tokenizer.cuts_left());
  const auto longest = longest_of(model, wishes);
  const text::Limits limits{
      .most_tokens = static_cast<std::size_t>(longest), .keep_end = left, .add_special = wishes.special};
  std::vector<text::Encoding> made;
  if (auto fault = encode_behind(*model.text, prompt, texts, limits, job, &made)) return fault;
  for (const auto& encoding : made) {
    if (encoding.cut && !may_cut) {
      return invalid("row " + std::to_string(out->size()) + ": the text has more than the " + std::to_string(longest) +
                     " tokens that " +
                     (longest < model.longest ? "the request allows" : "model '" + model.name + "' takes") +
                     "; shorten it, or set truncate");
    }
    if (encoding.ids.empty()) return invalid("row " + std::to_string(out->size()) + ": the text has no tokens");
    out->emplace_back(encoding.ids.begin(), encoding.ids.end());
  }
  return {};
}

MaybeFault tokenize_whole(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                          const TextWishes& wishes, std::size_t most_rows, text::Job* job, TokenRows* out,
                          std::vector<std::size_t>* pieces) {
  if (auto fault = check_text(model)) return fault;
  const auto longest = static_cast<std::size_t>(longest_of(model, wishes));
  // More tokens than this would exceed the window limit, so tokenisation can stop here.
  const text::Limits all{.most_tokens = most_rows * longest, .add_special = false};
  std::vector<text::Encoding> made;
  if (auto fault = encode_behind(*model.text, prompt, texts, all, job, &made)) return fault;
  const bool here = model.text->elsewhere == nullptr;
  const auto& tokenizer = model.text->tokenizer;
  const auto framing = here ? tokenizer.special_tokens(false) : job->before.size() + job->behind.size();
  const auto special = wishes.special ? framing : 0;
  if (longest < special + 2) {
    return invalid("truncate CHUNK: " + std::to_string(longest) + " tokens have no room for a piece of text");
  }
  const std::size_t room = longest - special;
  const std::size_t step = room - std::max<std::size_t>(1, room / kOverlap);
  text::Ids wrapped;
  for (const auto& encoding : made) {
    const std::size_t have = encoding.ids.size();
    std::size_t count = 0;
    for (std::size_t from = 0;; from += step) {
      wrapped.clear();
      const auto* const ids = encoding.ids.data() + from;
      const auto count_here = std::min(room, have - from);
      if (!wishes.special) {
        wrapped.assign(ids, ids + count_here);
      } else if (here) {
        tokenizer.wrap(ids, count_here, wrapped);
      } else {
        wrapped = job->before;
        wrapped.insert(wrapped.end(), ids, ids + count_here);
        wrapped.insert(wrapped.end(), job->behind.begin(), job->behind.end());
      }
      if (wrapped.empty()) return invalid("row " + std::to_string(pieces->size()) + ": the text has no tokens");
      out->emplace_back(wrapped.begin(), wrapped.end());
      ++count;
      if (encoding.cut || out->size() > most_rows) {
        return invalid("truncate CHUNK: the texts make more than the " + std::to_string(most_rows) +
                       " rows that are taken in one request: send fewer at a time");
      }
      if (from + room >= have) break;
    }
    pieces->push_back(count);
  }
  return {};
}

MaybeFault add_ids(const ModelSpec& model, const TokenRows& rows, inference::ModelInferRequest* out) {
  if (model.of_tensors()) return invalid("input: model '" + model.name + "' takes tensors, and no token ids");
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.size());
  if (width > static_cast<std::size_t>(model.longest)) {
    return invalid("input has " + std::to_string(width) + " token ids in one row; model '" + model.name +
                   "' takes 1 to " + std::to_string(model.longest));
  }
  const auto& ids = model.inputs[model.ids];
  for (const auto& row : rows) {
    if (model.mask < 0 && row.size() != width) {
      return invalid("input: model '" + model.name + "' has no attention mask, so all must be of one length");
    }
    if (ids.item == 4 &&
        std::any_of(row.begin(), row.end(), [](auto id) { return id != static_cast<std::int32_t>(id); })) {
      return invalid("input: a token id is none of the model's");
    }
  }
  if (auto fault = check_made(rows.size() * width * ids.item)) return fault;
  add_tensor(ids, rows, width, false, out);
  if (model.mask >= 0) add_tensor(model.inputs[static_cast<std::size_t>(model.mask)], rows, width, true, out);
  return {};
}

}  // namespace arlo::gateway
