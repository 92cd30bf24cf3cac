// Reads requests of text and makes token ids of them; from there on they are like any other.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "base/wire.h"
#include "rewrite/model.h"
#include "rewrite/request.h"
#include "rewrite/spec.h"

namespace arlo::gateway {
namespace {

constexpr std::uint32_t kBytesContents = 8;  // of inference.InferTensorContents
constexpr std::string_view kTypes = "token_type_ids";

std::string row_of(std::size_t row) { return "row " + std::to_string(row) + ": "; }

}  // namespace

MaybeFault InferRequest::read_texts(std::size_t tensor, bool raw_given, std::vector<std::string_view>& out) const {
  const Tensor& from = tensors_[tensor];
  const std::string what = "input " + quoted(from.name);
  if (from.datatype != "BYTES") return invalid(what + " has datatype " + quoted(from.datatype) + "; BYTES is needed");
  if (from.dims < 1 || from.dims > 2 || (from.dims == 2 && from.shape[1] != 1)) {
    return invalid(what + " needs the shape [rows] or [rows, 1]");
  }
  if (from.shape[0] != rows_) {
    return invalid(what + " has " + std::to_string(from.shape[0]) + " rows; " + std::to_string(rows_) +
                   " are needed, as of the others");
  }
  const auto rows = static_cast<std::size_t>(rows_);
  out.clear();
  out.reserve(rows);
  if (raw_given) {
    std::string_view left = raw_[tensor];
    while (!left.empty()) {
      std::string_view text;
      if (!take_element(left, text)) return invalid(what + ": text " + std::to_string(out.size()) + kCutShort);
      if (out.size() == rows) return invalid(what + " carries more texts than its shape says");
      out.push_back(text);
    }
  } else {
    wire::Reader reader(from.contents);
    while (reader.next()) {
      if (!reader.is(kBytesContents, wire::kBytes)) return invalid(what + " of datatype BYTES must use bytes_contents");
      if (out.size() == rows) return invalid(what + " carries more texts than its shape says");
      out.push_back(reader.bytes());
    }
    if (!reader.ok()) return invalid("malformed ModelInferRequest: typed contents does not parse");
  }
  if (out.size() == rows) return {};
  return invalid(what + " carries " + std::to_string(out.size()) + " texts; its shape needs " + std::to_string(rows));
}

MaybeFault InferRequest::bind_texts(const RequestLimits& limits, bool raw_given, text::Job* job) {
  const ModelSpec& model = *model_;
  if (!model.takes_text()) {
    return invalid("model '" + model.name + "' takes " + (model.of_tensors() ? "tensors" : "token ids") +
                   " and no text: " +
                   (model.text == nullptr ? "it was compiled without a tokenizer"
                                          : "its tokenizer is not one of the gateway's: " + model.text->no_text));
  }
  std::int64_t first = -1;
  std::int64_t second = -1;
  std::vector<std::size_t> beside;  // tensors of a row
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto name = tensors_[i].name;
    const int input = name == kText || name == kTextPair ? -1 : model.find_input(name);
    if (input >= 0 && model.inputs[static_cast<std::size_t>(input)].role == Role::kTensor) {
      if (!names_tasks(tensors_[i])) beside.push_back(i);
      continue;
    }
    if (name != kText && name != kTextPair) {
      return invalid("input " + quoted(name) + " beside text: send text, or token ids and what belongs to them");
    }
    auto& place = name == kText ? first : second;
    if (place >= 0) return invalid("input " + quoted(name) + " is given twice");
    place = static_cast<std::int64_t>(i);
  }
  if (first < 0) return invalid("input 'text_pair' needs 'text' beside it");
  if (second >= 0 && model.flow != nullptr) {
    return invalid("model '" + model.name +
                   "' is a pipeline, whose rows have no token types: it takes no pairs of texts");
  }
  if (auto fault = count_rows(tensors_[static_cast<std::size_t>(first)], limits)) return fault;
  cells_.assign(static_cast<std::size_t>(rows_) * model.inputs.size(), {});
  for (const std::size_t i : beside) {
    if (auto fault = bind_input(i, raw_given)) return fault;
  }
  if (auto fault = read_tasks(raw_given)) return fault;
  std::vector<std::string_view> texts;
  std::vector<std::string_view> pairs;
  if (auto fault = read_texts(static_cast<std::size_t>(first), raw_given, texts)) return fault;
  if (second >= 0) {
    if (auto fault = read_texts(static_cast<std::size_t>(second), raw_given, pairs)) return fault;
  }

  if (auto fault = add_prompt(texts)) return fault;
  if (auto fault = make_tokens(texts, pairs, job)) return fault;
  for (const auto& wording : model.wordings) {
    // What a request for a worker says of it, and the rows in other tokens.
    auto other = std::make_unique<InferRequest>();
    other->id_ = id_;
    other->forwarded_ = forwarded_;
    other->forwarded_size_ = forwarded_size_;
    other->truncate_ = truncate_;
    other->model_ = wording.get();
    other->rows_ = rows_;
    other->cells_.assign(static_cast<std::size_t>(rows_) * wording->inputs.size(), {});
    if (job != nullptr) job = job->another();
    if (auto fault = other->make_tokens(texts, pairs, job)) return fault;
    others_.push_back(std::move(other));
  }
  return {};
}

MaybeFault InferRequest::add_prompt(std::vector<std::string_view>& texts) {
  for (const auto& [given, name] : {std::pair(&prompt_name_, "prompt_name"), std::pair(&input_type_, "input_type")}) {
    if (given->entry.data() == nullptr) continue;
    if (!given->is_text) return invalid(std::string("parameter ") + name + " must be a string_param");
    forget_parameter(given->entry);
  }
  if (auto fault = check_input_type(input_type_.text)) return fault;
  std::string_view prompt;
  std::optional<std::string_view> name;
  if (prompt_name_.entry.data() != nullptr) name = prompt_name_.text;
  if (auto fault = find_prompt(*model_, name, input_type_.text, &prompt)) return fault;
  if (prompt.empty()) return {};
  prompted_.clear();  // bound again, when a helper is done
  prompted_.reserve(texts.size());
  for (auto& text : texts) {
    std::string& whole = prompted_.emplace_back(prompt);
    whole += text;
    text = whole;
  }
  return {};
}

// Rows of the model's tokens, as if a client had sent them.
MaybeFault InferRequest::make_tokens(const std::vector<std::string_view>& texts,
                                     const std::vector<std::string_view>& pairs, text::Job* job) {
  const ModelSpec& model = *model_;
  const bool left = truncate_ == Truncate::kStart || (truncate_ == Truncate::kCut && model.text->tokenizer.cuts_left());
  const text::Limits most{.most_tokens = static_cast<std::size_t>(model.longest), .keep_end = left};
  const bool may_cut = truncate_ != Truncate::kUnsaid && truncate_ != Truncate::kNone;
  std::vector<text::Encoding> made;
  if (auto fault = encode_texts(*model.text, texts, pairs, most, job, &made)) return fault;
  lengths_.resize(texts.size());
  width_ = 0;
  for (std::size_t row = 0; row < texts.size(); ++row) {
    const auto& encoding = made[row];
    if (encoding.cut && !may_cut) {
      return invalid(row_of(row) + "the text has more than the " + std::to_string(model.longest) +
                     " tokens that model '" + model.name +
                     "' takes; shorten it, or set the parameter truncate to END or START to have it cut there");
    }
    if (encoding.ids.empty()) return invalid(row_of(row) + "the text has no tokens");
    lengths_[row] = static_cast<std::int32_t>(encoding.ids.size());
    width_ = std::max(width_, std::int64_t{lengths_[row]});
  }

  // The mask and optional inputs are generated when the rows are written, as for token ids without them.
  const auto width = static_cast<std::size_t>(width_);
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const auto& spec = model.inputs[i];
    const bool types = spec.name == kTypes;
    if (i != model.ids && !types) {
      if (spec.role == Role::kMask || spec.optional || cell(0, i).data() != nullptr) continue;
      return invalid("model '" + model.name + "' needs the input '" + spec.name +
                     "', which text does not say: send "
                     "token ids");
    }
    std::string values(texts.size() * width * spec.item, '\0');
    for (std::size_t row = 0; row < made.size(); ++row) {
      char* at = values.data() + row * width * spec.item;
      for (std::size_t k = 0; k < made[row].ids.size(); ++k, at += spec.item) {
        const std::int64_t value = types ? std::int64_t{made[row].type_ids[k]} : std::int64_t{made[row].ids[k]};
        std::memcpy(at, &value, spec.item);
      }
    }
    decoded_.push_back(std::move(values));
    set_cells(i, decoded_.back().data(), width * spec.item);
  }
  of_text_ = true;
  for (std::size_t row = 0; row < made.size(); ++row) {
    const char* const at = cell(row, model.ids).data();
    if (auto fault = check_ids(model, at, static_cast<std::int64_t>(row), lengths_[row])) return fault;
  }
  return {};
}

}  // namespace arlo::gateway
