#include "rewrite/response.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "rewrite/fields.h"

namespace arlo::gateway {
namespace {

constexpr std::string_view kModelVersion = "1";

Fault bad_worker(std::string what) {
  return Fault{Code::kInternal, "the worker's answer is unusable: " + std::move(what)};
}

// Counts the elements of a raw BYTES tensor: each is 4 bytes of length, little-endian, and the data. -1: cut short.
std::int64_t count_elements(std::string_view raw) {
  std::int64_t count = 0;
  for (std::string_view element; !raw.empty(); ++count) {
    if (!take_element(raw, element)) return -1;
  }
  return count;
}

// Removes the first `count` elements, which are present, and returns their bytes.
std::string_view take_elements(std::string_view& left, std::size_t count) {
  const auto all = left;
  for (std::string_view element; count > 0; --count) take_element(left, element);
  return all.substr(0, all.size() - left.size());
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
    if (spec.item == 0) {
      output->of_rows.push_back(take_elements(left, count * *one));
    } else {
      output->of_rows.push_back(left.substr(0, count * *one));
      left.remove_prefix(count * *one);
    }
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
  for (std::size_t row = 0; row < rows; ++row) output->of_rows.push_back(take_elements(left, *size / rows));
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

const RowResponse::Output* RowResponse::find(int spec) const {
  const auto found = std::ranges::find(outputs_, spec, &Output::spec);
  return found == outputs_.end() ? nullptr : &*found;
}

std::string_view RowResponse::raw(int spec) const {
  const Output* const output = find(spec);
  return output == nullptr ? std::string_view() : output->raw;
}

std::size_t RowResponse::elements(int spec) const {
  const Output* const output = find(spec);
  return output == nullptr ? 0 : total_size(1, output->tail).value_or(0);
}

std::int64_t RowResponse::children(int spec) const {
  const Output* const output = find(spec);
  if (output == nullptr) return -1;
  if (output->children >= 0) return output->children;
  return output->tail.empty() ? -1 : output->tail.front();
}

void RowResponse::cut(int spec, std::size_t children, std::vector<std::string_view>& out) const {
  out.clear();
  const Output* const output = find(spec);
  if (output == nullptr || children == 0) return;
  out.reserve(children);
  std::string_view left = output->raw;
  const std::size_t each = left.size() / children;  // parse_raw(), part_children(): its size is what its shape says
  for (std::size_t child = 0; child < children; ++child) {
    auto& part = out.emplace_back();
    if (!output->varying) {
      part = left.substr(child * each, each);
    } else if (!take_element(left, part)) {
      return out.pop_back();
    }
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

wire::Writer ResponsePlan::more(std::size_t bytes) {
  text_.resize(text_.size() + bytes);
  return wire::Writer(text_.data() + text_.size() - bytes);
}

void ResponsePlan::begin(std::string_view model, std::string_view id) {
  text_.reserve(512);
  auto writer = more(wire::field_size(model.size()) + wire::field_size(kModelVersion.size()) +
                     (id.empty() ? 0 : wire::field_size(id.size())));
  writer.bytes(answer::kName, model);
  writer.bytes(answer::kVersion, kModelVersion);
  if (!id.empty()) writer.bytes(answer::kId, id);
}

void ResponsePlan::add_parameter(std::string_view key, std::uint32_t kind, std::uint64_t number) {
  const std::size_t inner = 1 + wire::varint_size(number);
  const std::size_t entry = wire::field_size(key.size()) + wire::field_size(inner);
  auto writer = more(wire::field_size(entry));
  writer.header(answer::kParameters, entry);
  writer.bytes(1, key);
  writer.header(2, inner);
  writer.tag(kind, wire::kVarint);
  writer.varint(number);
}

void ResponsePlan::output(const OutputSpec& spec, std::span<const std::int64_t> shape) {
  std::size_t dims = 0;
  for (const auto dim : shape) dims += wire::varint_size(static_cast<std::uint64_t>(dim));
  const std::size_t tensor =
      wire::field_size(spec.name.size()) + wire::field_size(spec.datatype.size()) + wire::field_size(dims);
  auto writer = more(wire::field_size(tensor));
  writer.header(answer::kOutputs, tensor);
  writer.bytes(kTensorName, spec.name);
  writer.bytes(kDatatype, spec.datatype);
  writer.header(kShape, dims);
  for (const auto dim : shape) writer.varint(static_cast<std::uint64_t>(dim));
  raws_.push_back({parts_.size()});
}

void ResponsePlan::add(std::string_view bytes, std::size_t zeros) {
  parts_.push_back({bytes, zeros});
  raws_.back().bytes += bytes.size() + zeros;
}

MaybeFault ResponsePlan::build(const ModelSpec& model, const InferRequest& request,
                               const std::vector<RowResponse>& rows, const Timing& timing, bool streamed) {
  begin(model.name, request.id());
  parameter("level", timing.level);
  parameter("max_length", timing.max_length);
  parameters(timing);
  std::span<const std::int32_t> lengths = request.lengths();
  if (request.of_text()) {
    parameter("tokens", std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
    parameter("tokenize_us", timing.tokenize_us);
  }
  if (!timing.stages.empty()) {
    parameter("stage", static_cast<std::int64_t>(timing.stages.size()) - 1);
    parameter("escalated", timing.escalated);
    parameter("degraded", timing.degraded);
    parameter("pruned_tokens", timing.pruned_tokens);
    parameter("cascade_version", timing.cascade_version);
    for (std::size_t i = 0; i < timing.stages.size(); ++i) {
      const std::string stage = "stage_" + std::to_string(i);
      parameter(stage + "_execute_us", timing.stages[i].execute_us);
      parameter(stage + "_queue_us", timing.stages[i].queue_us);
    }
  }
  const bool final = timing.partial < 0;
  if (request.wishes().partial) flag("cascade_final", final);
  if (!final) parameter("cascade_row", timing.partial);
  if (streamed && request.wants_final_response()) flag("triton_final_response", final);

  if (!final) lengths = lengths.subspan(static_cast<std::size_t>(timing.partial), 1);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  const auto& first = rows.front().outputs_;
  parts_.reserve(first.size() * rows.size());
  std::vector<std::int64_t> shape;
  for (std::size_t o = 0; o < first.size(); ++o) {
    const auto& spec = model.outputs[static_cast<std::size_t>(first[o].spec)];
    shape.assign(1, static_cast<std::int64_t>(rows.size()));
    if (spec.token_level) shape.push_back(static_cast<std::int64_t>(longest));
    shape.insert(shape.end(), first[o].tail.begin(), first[o].tail.end());
    output(spec, shape);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto& own = rows[r].outputs_[o];
      if (own.tail != first[o].tail) {
        return bad_worker("output '" + spec.name + "' has other dimensions for other rows");
      }
      if (!spec.token_level) {
        add(own.raw);
      } else {
        const std::size_t kept = static_cast<std::size_t>(lengths[r]) * own.token_bytes;
        add(own.raw.substr(0, kept), longest * own.token_bytes - kept);
      }
    }
  }
  return {};
}

void ResponsePlan::parameters(const Timing& timing) {
  parameter("queue_us", timing.queue_us);
  parameter("execute_us", timing.execute_us);
  parameter("total_us", timing.total_us);
  parameter("computed_tokens", timing.computed_tokens);
  parameter("demoted", timing.demoted);
  parameter("batch_rows", timing.batch_rows);
}

std::size_t ResponsePlan::size() const {
  std::size_t size = text_.size();
  for (const auto& raw : raws_) size += wire::field_size(raw.bytes);
  return size;
}

void ResponsePlan::write(char* out) const {
  wire::Writer writer(out);
  writer.raw(text_.data(), text_.size());
  for (std::size_t i = 0; i < raws_.size(); ++i) {
    writer.header(answer::kRaw, raws_[i].bytes);
    const std::size_t end = i + 1 < raws_.size() ? raws_[i + 1].first : parts_.size();
    for (std::size_t part = raws_[i].first; part < end; ++part) {
      writer.raw(parts_[part].bytes.data(), parts_[part].bytes.size());
      writer.zeros(parts_[part].zeros);
    }
  }
}

}  // namespace arlo::gateway
