#include "rewrite/response.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>

#include "base/wire.h"
#include "rewrite/fields.h"
#include "rewrite/tensors.h"

namespace arlo::gateway {
namespace {

constexpr std::string_view kModelVersion = "1";

Fault bad_worker(std::string what) {
  return Fault{Code::kInternal, "the worker's answer is unusable: " + std::move(what)};
}

// Appends the fields of a message to a string; only for small fields.
class TextWriter {
 public:
  explicit TextWriter(std::string* out) : out_(out) {}
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_->push_back(static_cast<char>(value | 0x80));
    out_->push_back(static_cast<char>(value));
  }
  void header(std::uint32_t field, std::size_t size) {
    out_->push_back(static_cast<char>(field << 3 | wire::kBytes));
    varint(size);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    header(field, value.size());
    out_->append(value);
  }
  void parameter(std::string_view key, std::uint32_t kind, std::uint64_t value) {
    constexpr std::size_t kMost = 64;  // keys are short: all are ours
    char text[kMost];
    wire::Writer writer(text);
    const std::size_t inner = 1 + wire::varint_size(value);
    writer.header(answer::kParameters, wire::field_size(key.size()) + wire::field_size(inner));
    writer.bytes(1, key);
    writer.header(2, inner);
    writer.tag(kind, wire::kVarint);
    writer.varint(value);
    out_->append(text, writer.at());
  }

 private:
  std::string* out_;
};

// Counts the elements of a raw BYTES tensor: each is 4 bytes of length, little-endian, and the data. -1: cut short.
std::int64_t count_elements(std::string_view raw) {
  std::int64_t count = 0;
  for (; !raw.empty(); ++count) {
    std::uint32_t size = 0;
    if (raw.size() < sizeof(size)) return -1;
    std::memcpy(&size, raw.data(), sizeof(size));
    raw.remove_prefix(sizeof(size));
    if (raw.size() < size) return -1;
    raw.remove_prefix(size);
  }
  return count;
}

// Returns the bytes of the first `count` elements, which are present.
std::size_t element_bytes(std::string_view raw, std::size_t count) {
  std::size_t bytes = 0;
  for (; count > 0; --count) {
    std::uint32_t size = 0;
    std::memcpy(&size, raw.data() + bytes, sizeof(size));
    bytes += sizeof(size) + size;
  }
  return bytes;
}

// unit * the product of dims; empty when a dimension is negative or the product does not fit.
std::optional<std::size_t> total_size(std::size_t unit, const std::vector<std::int64_t>& dims) {
  if (std::any_of(dims.begin(), dims.end(), [](auto dim) { return dim < 0; })) return {};
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  for (const auto dim : dims) {
    if (__builtin_mul_overflow(unit, static_cast<std::size_t>(dim), &unit)) return {};
  }
  return unit;
}

// Returns whether a worker's dimensions are those of the model; -1: any.
bool alike(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& tail) {
  return std::equal(dims.begin(), dims.end(), tail.begin(), tail.end(),
                    [](auto dim, auto got) { return dim < 0 || dim == got; });
}

std::string bracketed(const std::vector<std::int64_t>& dims) {
  std::string text = "[";
  for (const auto dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

}  // namespace

std::uint64_t known_answer_bytes(const ModelSpec& model, const InferRequest& request) {
  const auto& lengths = request.lengths();
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const auto& spec = model.outputs[i];
    if ((request.outputs() >> i & 1) == 0) continue;
    const bool cut = request.cut_to() != 0 && model.vector_output(false) == static_cast<int>(i);
    const auto row = cut ? spec.item * static_cast<std::size_t>(request.cut_to())
                         : total_size(spec.item * (spec.token_level ? longest : 1), spec.dims);
    std::uint64_t all = 0;
    if (row && !__builtin_mul_overflow(*row, lengths.size(), &all)) bytes += all;
  }
  return bytes;
}

MaybeFault WorkerResponse::parse(std::string_view body, const ModelSpec& model, OutputSet outputs, std::size_t rows,
                                 std::int32_t tokens) {
  rows_ = rows;
  outputs_.clear();
  struct Seen {
    std::string_view name;
    std::string_view datatype;
    std::vector<std::int64_t> shape;
  };
  constexpr std::size_t kUsual = 4;  // outputs of a model, and dimensions of one
  std::vector<Seen> seen;
  std::vector<std::string_view> raw;
  seen.reserve(kUsual);
  raw.reserve(kUsual);
  wire::Reader reader(body);
  while (reader.next()) {
    if (reader.is(answer::kRaw, wire::kBytes)) raw.push_back(reader.bytes());
    if (!reader.is(answer::kOutputs, wire::kBytes)) continue;
    Seen output;
    output.shape.reserve(kUsual);
    auto add_dim = [&output](std::uint64_t value) { output.shape.push_back(static_cast<std::int64_t>(value)); };
    wire::Reader inner(reader.bytes());
    while (inner.next()) {
      if (inner.is(kTensorName, wire::kBytes)) output.name = inner.bytes();
      if (inner.is(kDatatype, wire::kBytes)) output.datatype = inner.bytes();
      if (inner.is(kShape, wire::kVarint)) add_dim(inner.number());
      if (inner.is(kShape, wire::kBytes) && !wire::for_each_packed(inner.bytes(), add_dim)) {
        return bad_worker("a shape does not parse");
      }
    }
    if (!inner.ok()) return bad_worker("an output does not parse");
    seen.push_back(std::move(output));
  }
  if (!reader.ok()) return bad_worker("it does not parse");
  if (raw.size() != seen.size()) {
    return bad_worker(std::to_string(raw.size()) + " raw contents for " + std::to_string(seen.size()) + " outputs");
  }

  const auto many = static_cast<std::int64_t>(rows);
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if ((outputs >> i & 1) == 0) continue;
    const auto& spec = model.outputs[i];
    std::size_t k = 0;
    while (k < seen.size() && seen[k].name != spec.name) ++k;
    if (k == seen.size()) return bad_worker("output '" + spec.name + "' is missing");
    const auto& shape = seen[k].shape;
    if (seen[k].datatype != spec.datatype) {
      return bad_worker("output '" + spec.name + "' has datatype " + std::string(seen[k].datatype) + ", not " +
                        spec.datatype);
    }
    const std::size_t leading = spec.token_level ? 2 : 1;
    const bool as_many = spec.of_children ? !shape.empty() && shape[0] >= 0 : !shape.empty() && shape[0] == many;
    if (shape.size() < leading || !as_many || (spec.token_level && shape[1] != tokens)) {
      return bad_worker("output '" + spec.name + "' has a shape other than [" + std::to_string(many) +
                        (spec.token_level ? ", " + std::to_string(tokens) : "") + ", ...]");
    }
    Output output;
    output.all.spec = static_cast<int>(i);
    output.all.raw = raw[k];
    output.all.tail.assign(shape.begin() + static_cast<std::ptrdiff_t>(leading), shape.end());
    output.all.varying = spec.item == 0;
    output.all.children = spec.of_children ? shape[0] : -1;  // of all rows, until their counts are known
    const auto each = static_cast<std::size_t>(spec.token_level ? tokens : 1);
    if (!spec.of_children) {
      if (auto fault = parse_raw(spec, rows, each, &output)) return fault;
    }
    if (!alike(spec.dims, output.all.tail)) {
      return bad_worker("output '" + spec.name + "' has " + bracketed(output.all.tail) +
                        (spec.token_level ? " for each token" : " for each row") + ", not " + bracketed(spec.dims));
    }
    outputs_.push_back(std::move(output));
  }
  const bool counted = std::any_of(outputs_.begin(), outputs_.end(), [](const auto& o) { return o.all.children >= 0; });
  if (!counted) return {};
  if (auto fault = parse_counts(model)) return fault;
  for (auto& output : outputs_) {
    if (output.all.children < 0) continue;
    if (auto fault = part_children(model.outputs[static_cast<std::size_t>(output.all.spec)], &output)) return fault;
  }
  return {};
}

MaybeFault WorkerResponse::parse_counts(const ModelSpec& model) {
  const auto found =
      std::find_if(outputs_.begin(), outputs_.end(), [&](const auto& o) { return o.all.spec == model.counts; });
  if (found == outputs_.end()) return bad_worker("nothing says how many children its rows have");
  const auto& spec = model.outputs[static_cast<std::size_t>(model.counts)];
  counts_.clear();
  for (std::size_t row = 0; row < rows_; ++row) {
    const char* const at = found->all.raw.data() + row * spec.item;
    std::int64_t count = 0;
    if (spec.item == 8) {
      std::memcpy(&count, at, sizeof(count));
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, at, sizeof(narrow));
      count = narrow;
    }
    if (count < 0 || count > std::int64_t{kMostChildren}) {
      return bad_worker("output '" + spec.name + "' says " + std::to_string(count) + " children of a row; 0 to " +
                        std::to_string(kMostChildren) + " are taken");
    }
    counts_.push_back(static_cast<std::uint32_t>(count));
  }
  return {};
}

MaybeFault WorkerResponse::part_children(const OutputSpec& spec, Output* output) const {
  const std::uint64_t all = std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
  if (static_cast<std::uint64_t>(output->all.children) != all) {
    return bad_worker("output '" + spec.name + "' is of " + std::to_string(output->all.children) + " children; " +
                      std::to_string(all) + " were counted");
  }
  const auto one = total_size(std::max<std::size_t>(spec.item, 1), output->all.tail);
  std::size_t size = 0;
  if (!one || __builtin_mul_overflow(*one, all, &size)) {
    return bad_worker("output '" + spec.name + "' has impossible dimensions");
  }
  std::string_view left = output->all.raw;
  const auto elements = spec.item == 0 ? count_elements(left) : static_cast<std::int64_t>(left.size());
  if (elements < 0 || static_cast<std::size_t>(elements) != size) {
    return bad_worker("output '" + spec.name + "' does not carry what its shape says");
  }
  output->of_rows.clear();
  for (const auto count : counts_) {
    const std::size_t bytes = spec.item == 0 ? element_bytes(left, count * *one) : count * *one;
    output->of_rows.push_back(left.substr(0, bytes));
    left.remove_prefix(bytes);
  }
  return {};
}

MaybeFault WorkerResponse::parse_raw(const OutputSpec& spec, std::size_t rows, std::size_t tokens, Output* output) {
  const auto size = total_size(std::max<std::size_t>(spec.item, 1) * tokens * rows, output->all.tail);
  if (!size) return bad_worker("output '" + spec.name + "' has impossible dimensions");
  output->all.token_bytes = *size / tokens / rows;
  const std::string_view raw = output->all.raw;
  if (spec.item != 0) {
    if (raw.size() == *size) return {};
    return bad_worker("output '" + spec.name + "' carries " + std::to_string(raw.size()) + " bytes; its shape needs " +
                      std::to_string(*size));
  }
  const auto count = count_elements(raw);
  if (count < 0 || static_cast<std::size_t>(count) != *size) {
    return bad_worker("output '" + spec.name + "' carries " +
                      (count < 0 ? "elements that are cut short" : std::to_string(count) + " elements") +
                      "; its shape needs " + std::to_string(*size));
  }
  std::string_view left = raw;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t bytes = element_bytes(left, *size / rows);
    output->of_rows.push_back(left.substr(0, bytes));
    left.remove_prefix(bytes);
  }
  return {};
}

RowResponse WorkerResponse::row(std::size_t row, OutputSet outputs) const {
  RowResponse response;
  for (const auto& [all, of_rows] : outputs_) {
    if ((outputs >> all.spec & 1) == 0) continue;
    auto& output = response.outputs_.emplace_back(all);
    const std::size_t bytes = all.raw.size() / rows_;
    output.raw = of_rows.empty() ? all.raw.substr(row * bytes, bytes) : of_rows[row];
    if (output.children >= 0) output.children = counts_[row];
  }
  return response;
}

std::string_view RowResponse::raw(int spec) const {
  for (const auto& output : outputs_) {
    if (output.spec == spec) return output.raw;
  }
  return {};
}

std::size_t RowResponse::elements(int spec) const {
  for (const auto& output : outputs_) {
    if (output.spec != spec) continue;
    return total_size(1, output.tail).value_or(0);
  }
  return 0;
}

std::int64_t RowResponse::children(int spec) const {
  for (const auto& output : outputs_) {
    if (output.spec != spec) continue;
    if (output.children >= 0) return output.children;
    return output.tail.empty() ? -1 : output.tail.front();
  }
  return -1;
}

void RowResponse::cut(int spec, std::size_t children, std::vector<std::string_view>& out) const {
  out.clear();
  const auto output =
      std::find_if(outputs_.begin(), outputs_.end(), [&](const auto& each) { return each.spec == spec; });
  if (output == outputs_.end() || children == 0) return;
  out.reserve(children);
  std::string_view left = output->raw;
  const std::size_t each = left.size() / children;  // parse_raw(), part_children(): its size is what its shape says
  for (std::size_t child = 0; child < children; ++child) {
    if (!output->varying) {
      out.push_back(left.substr(child * each, each));
      continue;
    }
    std::uint32_t size = 0;
    if (left.size() < sizeof(size)) return;
    std::memcpy(&size, left.data(), sizeof(size));
    out.push_back(left.substr(sizeof(size), size));
    left.remove_prefix(sizeof(size) + size);
  }
}

RowResponse RowResponse::only(OutputSet outputs) const {
  RowResponse response;
  for (const auto& output : outputs_) {
    if ((outputs >> output.spec & 1) != 0) response.outputs_.push_back(output);
  }
  return response;
}

void RowResponse::set(int spec, std::vector<std::int64_t> tail, std::string_view raw) {
  auto at = outputs_.begin();
  while (at != outputs_.end() && at->spec < spec) ++at;
  if (at == outputs_.end() || at->spec != spec) at = outputs_.insert(at, Output{});
  at->spec = spec;
  at->tail = std::move(tail);
  at->raw = raw;
}

void RowResponse::cut_vector(int spec, std::int64_t size) {
  const auto bytes = static_cast<std::size_t>(size) * sizeof(float);
  if (raw(spec).size() > bytes) set(spec, {size}, raw(spec).substr(0, bytes));
}

void ResponsePlan::text_part(std::size_t from) {
  if (text_.size() == from) return;
  if (!parts_.empty() && parts_.back().kind == Part::kText) {
    parts_.back().size += text_.size() - from;  // text is contiguous
  } else {
    parts_.push_back({Part::kText, 0, nullptr, from, text_.size() - from});
  }
}

MaybeFault ResponsePlan::build(const ModelSpec& model, const InferRequest& request,
                               const std::vector<RowResponse>& rows, const Timing& timing, bool streamed) {
  text_.reserve(512);
  parts_.reserve(2 + 2 * rows.size());  // of one output
  TextWriter writer(&text_);
  writer.bytes(answer::kName, model.name);
  writer.bytes(answer::kVersion, kModelVersion);
  if (!request.id().empty()) writer.bytes(answer::kId, request.id());
  writer.parameter("level", kInt64, static_cast<std::uint64_t>(timing.level));
  writer.parameter("max_length", kInt64, static_cast<std::uint64_t>(timing.max_length));
  writer.parameter("queue_us", kInt64, static_cast<std::uint64_t>(timing.queue_us));
  writer.parameter("execute_us", kInt64, static_cast<std::uint64_t>(timing.execute_us));
  writer.parameter("total_us", kInt64, static_cast<std::uint64_t>(timing.total_us));
  writer.parameter("computed_tokens", kInt64, static_cast<std::uint64_t>(timing.computed_tokens));
  writer.parameter("demoted", kInt64, static_cast<std::uint64_t>(timing.demoted));
  writer.parameter("batch_rows", kInt64, static_cast<std::uint64_t>(timing.batch_rows));
  if (request.of_text()) {
    const auto& lengths = request.lengths();
    writer.parameter("tokens", kInt64, std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0}));
    writer.parameter("tokenize_us", kInt64, static_cast<std::uint64_t>(timing.tokenize_us));
  }
  if (!timing.stages.empty()) {
    writer.parameter("stage", kInt64, timing.stages.size() - 1);
    writer.parameter("escalated", kInt64, static_cast<std::uint64_t>(timing.escalated));
    writer.parameter("degraded", kInt64, static_cast<std::uint64_t>(timing.degraded));
    writer.parameter("pruned_tokens", kInt64, static_cast<std::uint64_t>(timing.pruned_tokens));
    writer.parameter("cascade_version", kInt64, static_cast<std::uint64_t>(timing.cascade_version));
    for (std::size_t i = 0; i < timing.stages.size(); ++i) {
      char stage[] = "stage_0_execute_us";
      stage[6] = static_cast<char>('0' + i);  // there are at most eight
      writer.parameter(stage, kInt64, static_cast<std::uint64_t>(timing.stages[i].execute_us));
      constexpr std::string_view kQueue = "_queue_us";
      std::memcpy(stage + 7, kQueue.data(), kQueue.size());
      writer.parameter({stage, 7 + kQueue.size()}, kInt64, static_cast<std::uint64_t>(timing.stages[i].queue_us));
    }
  }
  const bool final = timing.partial < 0;
  if (request.wishes().partial) writer.parameter("cascade_final", kBool, final ? 1 : 0);
  if (!final) writer.parameter("cascade_row", kInt64, static_cast<std::uint64_t>(timing.partial));
  if (streamed && request.wants_final_response()) writer.parameter("triton_final_response", kBool, final ? 1 : 0);

  std::span<const std::int32_t> lengths = request.lengths();
  if (!final) lengths = lengths.subspan(static_cast<std::size_t>(timing.partial), 1);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  const auto& first = rows.front().outputs_;
  for (std::size_t o = 0; o < first.size(); ++o) {
    const auto& spec = model.outputs[static_cast<std::size_t>(first[o].spec)];
    for (const auto& row : rows) {
      if (row.outputs_[o].tail != first[o].tail) {
        return bad_worker("output '" + spec.name + "' has other dimensions for other rows");
      }
    }
    std::size_t shape = wire::varint_size(rows.size());
    if (spec.token_level) shape += wire::varint_size(longest);
    for (const auto dim : first[o].tail) shape += wire::varint_size(static_cast<std::uint64_t>(dim));
    writer.header(answer::kOutputs, wire::field_size(spec.name.size()) + wire::field_size(spec.datatype.size()) +
                                        wire::field_size(shape));
    writer.bytes(kTensorName, spec.name);
    writer.bytes(kDatatype, spec.datatype);
    writer.header(kShape, shape);
    writer.varint(rows.size());
    if (spec.token_level) writer.varint(longest);
    for (const auto dim : first[o].tail) writer.varint(static_cast<std::uint64_t>(dim));
  }
  text_part(0);

  for (std::size_t o = 0; o < first.size(); ++o) {
    const bool token_level = model.outputs[static_cast<std::size_t>(first[o].spec)].token_level;
    std::size_t bytes = 0;
    for (const auto& row : rows)
      bytes += token_level ? longest * row.outputs_[o].token_bytes : row.outputs_[o].raw.size();
    const std::size_t from = text_.size();
    writer.header(answer::kRaw, bytes);
    text_part(from);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto& output = rows[r].outputs_[o];
      const std::size_t kept =
          token_level ? static_cast<std::size_t>(lengths[r]) * output.token_bytes : output.raw.size();
      if (kept != 0) parts_.push_back({Part::kRow, r, output.raw.data(), 0, kept});
      const std::size_t padding = token_level ? longest * output.token_bytes - kept : 0;
      if (padding != 0) parts_.push_back({Part::kZeros, r, nullptr, 0, padding});
    }
  }
  for (const auto& part : parts_) size_ += part.size;
  return {};
}

void ResponsePlan::write(char* out) const {
  for (const auto& part : parts_) {
    switch (part.kind) {
      case Part::kText:
        std::memcpy(out, text_.data() + part.offset, part.size);
        break;
      case Part::kRow:
        std::memcpy(out, part.data, part.size);
        break;
      case Part::kZeros:
        std::memset(out, 0, part.size);
        break;
    }
    out += part.size;
  }
}

}  // namespace arlo::gateway
