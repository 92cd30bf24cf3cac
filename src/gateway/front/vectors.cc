#include "gateway/front/vectors.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/utf8.h"
#include "rewrite/prompts.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

MaybeFault read_ids(const json& from, std::vector<std::int64_t>* out) {
  for (const auto& id : from) {
    if (!whole(id)) return invalid("input: token ids are whole numbers, not beside anything else");
    out->push_back(id.get<std::int64_t>());
  }
  if (out->empty()) return nothing_in("input: a list of token ids is empty");
  return {};
}

void normalize(float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  if (sum == 0) return;
  const double by = 1 / std::sqrt(sum);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(values[i] * by);
}

std::string signs_of(VectorKind kind, const float* values, std::size_t count) {
  std::string signs((count + 7) / 8, '\0');
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] > 0) signs[i / 8] = static_cast<char>(signs[i / 8] | 0x80 >> i % 8);
  }
  if (kind == VectorKind::kBinary) {
    for (char& byte : signs) byte = static_cast<char>(byte ^ 0x80);  // less 128
  }
  return signs;
}

}  // namespace

MaybeFault read_inputs(const json& body, const std::string& field, bool empty_texts, Inputs* out) {
  const auto found = body.find(field);
  if (found == body.end()) return invalid(field + " is missing");
  const json& from = *found;
  if (from.is_string()) return read_texts(json::array({from}), field, empty_texts, &out->texts);
  if (from.is_array() && from.empty()) return nothing_in(field + " is empty");
  if (!from.is_array()) return invalid(field + " must be a text, a list of texts, or token ids; and not empty");
  if (from.front().is_number()) return read_ids(from, &out->ids.emplace_back());
  if (!from.front().is_array()) return read_texts(from, field, empty_texts, &out->texts);
  for (const auto& row : from) {
    if (!row.is_array()) return invalid(field + ": token ids are lists of numbers, not beside anything else");
    if (auto fault = read_ids(row, &out->ids.emplace_back())) return fault;
  }
  return {};
}

std::size_t Inputs::characters() const {
  if (!texts.empty()) return count_characters_of(texts);
  std::size_t count = 0;
  for (const auto& row : ids) count += row.size();
  return count;
}

MaybeFault ask_output(const ModelSpec& model, bool of_tokens, inference::ModelInferRequest* out,
                      const OutputSpec** spec) {
  const int output = model.vector_output(of_tokens);
  if (output < 0) {
    return Fault{Code::kUnimplemented, "model '" + model.name + "' gives no embedding of a " +
                                           (of_tokens ? "token: it has no output last_hidden_state"
                                                      : "text: it has no output sentence_embedding")};
  }
  *spec = &model.outputs[static_cast<std::size_t>(output)];
  out->set_model_name(model.name);
  out->add_outputs()->set_name((*spec)->name);
  return {};
}

bool Vectors::meant_for(std::string_view input_type) {
  if (wishes_.input_type.empty()) wishes_.input_type = input_type;
  return true;
}

MaybeFault Vectors::ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) {
  const OutputSpec* spec = nullptr;
  if (auto fault = ask_output(model, false, out, &spec)) return fault;
  if (spec->dims[0] >= 0 && dimensions_ > spec->dims[0]) {
    return invalid("dimensions: model '" + model.name + "' has " + std::to_string(spec->dims[0]));
  }
  if (dimensions_ == 0) dimensions_ = model.cut_to();
  if (dimensions_ != 0 && model.flow == nullptr) {
    (*out->mutable_parameters())["dimensions"].set_int64_param(dimensions_);
  }
  if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
  std::string_view prompt;
  if (auto fault = find_prompt(model, wishes_.prompt, wishes_.input_type, &prompt)) return fault;
  if (inputs_.ids.empty() && wishes_.truncate == "CHUNK") {
    if (auto fault =
            tokenize_whole(model, prompt, inputs_.texts, wishes_, most_rows, job_.get(), &inputs_.ids, &pieces_))
      return fault;
    for (const auto& row : inputs_.ids) weights_.push_back(static_cast<double>(row.size()));
  } else if (inputs_.ids.empty() && wishes_.own_tokens()) {
    if (auto fault = tokenize(model, prompt, inputs_.texts, wishes_, job_.get(), &inputs_.ids)) return fault;
  }
  add_wishes(wishes_, inputs_.ids.empty(), out);
  if (!inputs_.ids.empty()) {
    for (const auto& row : inputs_.ids) tokens_ += static_cast<std::int64_t>(row.size());
    return add_ids(model, inputs_.ids, out);
  }
  return add_texts(kText, {}, inputs_.texts, out);
}

MaybeFault Vectors::read_vectors(const ApiBody& from, const json& body, const char* field, bool empty_texts) {
  if (field != nullptr) {
    if (auto fault = read_inputs(body, field, empty_texts, &inputs_)) return fault;
  }
  if (auto fault = read_text(body, "model", &model_)) return fault;
  if (auto fault = read_count(body, "dimensions", 1, &dimensions_)) return fault;
  if (auto fault = read_bool(body, "normalize", &normalize_)) return fault;
  return read_wishes(body, from.auto_truncate, &wishes_);
}

MaybeFault Vectors::vectors(const inference::ModelInferResponse& answer, std::vector<float>* out, std::size_t* each) {
  std::size_t have = 0;
  if (auto fault = read_rows(answer, std::max(inputs_.ids.size(), inputs_.rows()), out, &have, pieces_)) return fault;
  *each = dimensions_ == 0 ? have : static_cast<std::size_t>(dimensions_);
  if (*each > have) {
    return Fault{Code::kInternal, "the worker's answer has vectors of " + std::to_string(have) + " numbers"};
  }
  if (tokens_ == 0) tokens_ = said(answer, "tokens");
  if (!pieces_.empty()) pool(have, out);
  const std::size_t rows = out->size() / have;
  for (std::size_t row = 0; row < rows; ++row) {  // in place: what is cut to is never behind what it comes from
    float* to = out->data() + row * *each;
    std::copy_n(out->data() + row * have, *each, to);
    if (normalize_) normalize(to, *each);
  }
  out->resize(rows * *each);
  return {};
}

void Vectors::pool(std::size_t have, std::vector<float>* out) const {
  std::vector<float> pooled;
  pooled.reserve(pieces_.size() * have);
  std::size_t row = 0;
  std::vector<double> sum(have);
  for (const std::size_t count : pieces_) {
    std::fill(sum.begin(), sum.end(), 0);
    double weight = 0;
    for (std::size_t k = 0; k < count; ++k, ++row) {
      weight += weights_[row];
      for (std::size_t i = 0; i < have; ++i) sum[i] += weights_[row] * (*out)[row * have + i];
    }
    for (const double value : sum) pooled.push_back(static_cast<float>(value / weight));
  }
  *out = std::move(pooled);
}

MaybeFault read_kind(const std::string& field, std::string_view name, VectorKind* out) {
  if (name == "float") {
    *out = VectorKind::kFloat;
  } else if (name == "ubinary") {
    *out = VectorKind::kUbinary;
  } else if (name == "binary") {
    *out = VectorKind::kBinary;
  } else if (name == "int8" || name == "uint8") {
    return invalid(field + ": " + std::string(name) +
                   " needs the range of each number over a collection, which models here do not have");
  } else {
    return invalid(field + ": there is no " + arlo::quoted(name) + "; float, binary and ubinary are");
  }
  return {};
}

void append_vector(VectorKind kind, const float* values, std::size_t count, std::string* out) {
  if (kind == VectorKind::kFloat) return append_floats(values, count, out);
  out->push_back('[');
  for (const char sign : signs_of(kind, values, count)) {
    const int number = kind == VectorKind::kBinary ? static_cast<signed char>(sign) : static_cast<unsigned char>(sign);
    if (out->back() != '[') out->push_back(',');
    out->append(std::to_string(number));
  }
  out->push_back(']');
}

void append_vector_base64(VectorKind kind, const float* values, std::size_t count, std::string* out) {
  out->push_back('"');
  if (kind == VectorKind::kFloat) {
    append_base64({reinterpret_cast<const char*>(values), count * sizeof(float)}, out);
  } else {
    append_base64(signs_of(kind, values, count), out);
  }
  out->push_back('"');
}

}  // namespace arlo::gateway
