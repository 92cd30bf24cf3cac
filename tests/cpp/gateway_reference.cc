#include "gateway_reference.h"

#include <google/protobuf/util/field_comparator.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <set>

#include "base/wire.h"

namespace arlo::gateway::reference {
namespace {

using Values = std::vector<std::int64_t>;
using Tensor = Request::InferInputTensor;

bool is_set(const inference::InferParameter& value) {
  switch (value.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return value.bool_param();
    case inference::InferParameter::kInt64Param:
      return value.int64_param() != 0;
    case inference::InferParameter::kUint64Param:
      return value.uint64_param() != 0;
    case inference::InferParameter::kDoubleParam:
      return std::bit_cast<std::uint64_t>(value.double_param()) != 0;
    case inference::InferParameter::kStringParam:
      return !value.string_param().empty();
    default:
      return false;
  }
}

bool starts_with(const std::string& text, std::string_view prefix) {
  return std::string_view(text).substr(0, prefix.size()) == prefix;
}

enum class Use { kForward, kHere, kRefuse };

Use use_of(const std::string& key, const inference::InferParameter& value) {
  if (key == "sequence_id") return is_set(value) ? Use::kRefuse : Use::kHere;
  if (key == "sequence_start" || key == "sequence_end" || key == "priority") return Use::kHere;
  if (key == "arlo_class") {
    return value.has_string_param() && (value.string_param() == "bulk" || value.string_param() == "interactive")
               ? Use::kHere
               : Use::kRefuse;
  }
  if (key == "timeout") return value.has_int64_param() && value.int64_param() >= 0 ? Use::kHere : Use::kRefuse;
  if (key == "triton_enable_empty_final_response") return Use::kHere;
  // Those of cascades are refused by a model that is none, and what is of text where there are token ids.
  return key == "truncate" || starts_with(key, "triton_") || starts_with(key, "cascade") ? Use::kRefuse : Use::kForward;
}

template <typename Map>
bool uses_shared_memory(const Map& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& entry) { return starts_with(entry.first, "shared_memory"); });
}

bool is_typed(const Tensor& tensor) { return tensor.has_contents() && tensor.contents().ByteSizeLong() != 0; }

std::optional<Values> typed_values(const Tensor& tensor, const InputSpec& spec) {
  auto others = tensor.contents();
  Values values;
  if (spec.item == 8) {
    values.assign(others.int64_contents().begin(), others.int64_contents().end());
    others.clear_int64_contents();
  } else {
    values.assign(others.int_contents().begin(), others.int_contents().end());
    others.clear_int_contents();
  }
  if (others.ByteSizeLong() != 0) return {};
  return values;
}

Values raw_values(const std::string& raw, std::size_t item) {
  Values values;
  for (std::size_t at = 0; at + item <= raw.size(); at += item) {
    std::uint64_t value = 0;
    for (std::size_t k = 0; k < item; ++k) value |= std::uint64_t{static_cast<unsigned char>(raw[at + k])} << (8 * k);
    values.push_back(static_cast<std::int64_t>(value));
  }
  return values;
}

// The tensor's elements, row-major; empty when they do not fit the shape [rows, width].
std::optional<Values> values_of(const Request& request, int index, const InputSpec& spec, std::int64_t rows,
                                std::int64_t width) {
  std::optional<Values> values;
  const auto needed = static_cast<unsigned __int128>(rows) * static_cast<unsigned __int128>(width);
  if (request.raw_input_contents_size() == 0) {
    values = typed_values(request.inputs(index), spec);
  } else {
    const auto& raw = request.raw_input_contents(index);
    if (raw.size() % spec.item == 0) values = raw_values(raw, spec.item);
  }
  if (!values || values->size() != needed) return {};
  return values;
}

int find_input(const Request& request, const std::string& name) {
  for (int i = 0; i < request.inputs_size(); ++i) {
    if (request.inputs(i).name() == name) return i;
  }
  return -1;
}

void append(std::string* raw, std::int64_t value, std::size_t item) {
  for (std::size_t k = 0; k < item; ++k)
    raw->push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * k)));
}

void set_parameter(Response* response, const std::string& key, std::int64_t value) {
  (*response->mutable_parameters())[key].set_int64_param(value);
}

bool is_requested(const Request& request, const std::string& name) {
  if (request.outputs().empty()) return true;
  return std::any_of(request.outputs().begin(), request.outputs().end(),
                     [&](const auto& output) { return output.name() == name; });
}

// A worker's output as the model has it; empty: unusable.
struct Piece {
  Values tail;
  std::string raw;
  std::size_t token_bytes = 0;
};
std::optional<Piece> piece_of(const Response& worker, const OutputSpec& spec, std::int32_t padded) {
  if (worker.raw_output_contents_size() != worker.outputs_size()) return {};
  int index = 0;
  while (index < worker.outputs_size() && worker.outputs(index).name() != spec.name) ++index;
  if (index == worker.outputs_size()) return {};
  const auto& output = worker.outputs(index);
  const int leading = spec.token_level ? 2 : 1;
  if (output.datatype() != spec.datatype || output.shape_size() < leading || output.shape(0) != 1) return {};
  if (spec.token_level && output.shape(1) != padded) return {};
  Piece piece;
  piece.raw = worker.raw_output_contents(index);
  piece.tail.assign(output.shape().begin() + leading, output.shape().end());
  if (piece.tail.size() != spec.dims.size()) return {};
  for (std::size_t i = 0; i < spec.dims.size(); ++i) {
    if (spec.dims[i] >= 0 && spec.dims[i] != piece.tail[i]) return {};
  }
  unsigned __int128 elements = 1;
  for (const auto dim : piece.tail) {
    if (dim < 0) return {};
    elements *= static_cast<std::uint64_t>(dim);
    if (elements >> 63 != 0 && std::find(piece.tail.begin(), piece.tail.end(), 0) == piece.tail.end()) return {};
    elements = std::min(elements, static_cast<unsigned __int128>(1) << 63);  // a 0 follows
  }
  if (spec.item == 0) {
    const auto found = count_bytes_elements(piece.raw);
    if (!found || *found != elements) return {};
    return piece;
  }
  const auto bytes = elements * spec.item;
  if (bytes * (spec.token_level ? static_cast<std::uint64_t>(padded) : 1) != piece.raw.size()) return {};
  piece.token_bytes = static_cast<std::size_t>(bytes);
  return piece;
}

struct Parameters {
  std::size_t count = 0;
  std::size_t bytes = 0;  // of the map entries
};

// As protobuf writes them: what came may have been some bytes longer or shorter.
Parameters parameters_of(const Request& request) {
  Parameters out;
  auto add = [&out](const auto& parameters) {
    for (const auto& [key, value] : parameters) {
      ++out.count;
      const auto inner = value.ByteSizeLong();
      out.bytes += wire::field_size(key.size()) + wire::field_size(inner);
    }
  };
  add(request.parameters());
  for (const auto& input : request.inputs()) add(input.parameters());
  for (const auto& output : request.outputs()) add(output.parameters());
  return out;
}

std::string says(const MaybeFault& fault) { return fault ? "'" + fault->message + "'" : "nothing"; }

std::string written_row(const InferRequest& request, std::size_t index, const RuntimeInfo& runtime) {
  const WorkerRequest::Row row{&request, index, request.outputs()};
  const WorkerRequest sent({&row, 1}, runtime, WorkerRequest::tokens(request.lengths()[index], runtime));
  const std::size_t size = sent.size();
  const std::unique_ptr<char[]> memory(new char[size]);  // a byte too many is a heap overflow, which ASan sees
  sent.write(memory.get());
  return {memory.get(), size};
}

// The same answer from every row's worker, merged; empty when it is refused. `problem` is set where that must never be.
std::optional<Response> merged_answer(const InferRequest& request, const std::string& answer, const ModelSpec& model,
                                      const std::vector<std::int32_t>& padded, const Timing& timing,
                                      std::string* problem) {
  std::vector<RowResponse> rows;
  MaybeFault fault;
  for (const auto tokens : padded) {
    WorkerResponse worker;
    fault = worker.parse(answer, model, request.outputs(), 1, tokens);
    if (fault) break;
    rows.push_back(worker.row(0, request.outputs()));
  }
  ResponsePlan plan;
  if (!fault) fault = plan.build(model, request, rows, timing, true);
  if (fault) {
    if (fault->code != Code::kInternal || fault->message.empty())
      *problem = "a worker's fault is not a worded INTERNAL";
    return {};
  }
  const std::unique_ptr<char[]> memory(new char[plan.size()]);
  plan.write(memory.get());
  Response merged;
  if (!merged.ParseFromArray(memory.get(), static_cast<int>(plan.size())))
    *problem = "the merged answer does not parse";
  return merged;
}

}  // namespace

std::optional<std::size_t> count_bytes_elements(std::string_view raw) {
  std::size_t count = 0;
  for (; !raw.empty(); ++count) {
    if (raw.size() < 4) return {};
    std::uint32_t size = 0;
    std::memcpy(&size, raw.data(), 4);
    if (raw.size() - 4 < size) return {};
    raw.remove_prefix(4 + std::size_t{size});
  }
  return count;
}

std::optional<std::vector<std::int32_t>> lengths(const Request& request, const ModelSpec& model,
                                                 const RequestLimits& limits) {
  if (request.id().size() > 4096) return {};
  const auto used = parameters_of(request);
  if (used.count > 64 || used.bytes > 16 * 1024) return {};
  if (request.inputs_size() > 64 || request.outputs_size() > 64 || request.raw_input_contents_size() > 64) return {};
  for (const auto& [key, value] : request.parameters()) {
    if (use_of(key, value) == Use::kRefuse) return {};
  }
  std::set<std::string> outputs;
  for (const auto& output : request.outputs()) {
    if (uses_shared_memory(output.parameters())) return {};
    const auto classification = output.parameters().find("classification");
    if (classification != output.parameters().end() && is_set(classification->second)) return {};
    if (model.find_output(output.name()) < 0 || !outputs.insert(output.name()).second) return {};
  }
  const bool any_typed = std::any_of(request.inputs().begin(), request.inputs().end(), is_typed);
  const int raw_count = request.raw_input_contents_size();
  if (raw_count != 0 && (any_typed || raw_count != request.inputs_size())) return {};

  const auto& ids_spec = model.inputs[model.ids];
  const int ids = find_input(request, ids_spec.name);
  if (ids < 0 || request.inputs(ids).shape_size() != 2) return {};
  const std::int64_t rows = request.inputs(ids).shape(0);
  const std::int64_t width = request.inputs(ids).shape(1);
  if (rows < 1 || rows > limits.max_rows || width < 1) return {};

  std::set<std::string> names;
  std::optional<Values> mask;
  Values given_ids;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const auto& input = request.inputs(i);
    if (uses_shared_memory(input.parameters())) return {};
    const int index = model.find_input(input.name());
    if (index < 0 || !names.insert(input.name()).second) return {};
    const auto& spec = model.inputs[static_cast<std::size_t>(index)];
    if (input.datatype() != spec.datatype) return {};
    if (input.shape_size() != 2 || input.shape(0) != rows || input.shape(1) != width) return {};
    const auto values = values_of(request, i, spec, rows, width);
    if (!values) return {};
    if (index == model.mask) mask = values;
    if (i == ids) given_ids = *values;
  }
  for (const auto& spec : model.inputs) {
    if (spec.role == Role::kOther && !spec.optional && names.count(spec.name) == 0) return {};
  }
  std::vector<std::int32_t> out;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t length = mask ? 0 : width;
    for (std::int64_t i = 0; mask && i < width; ++i) {
      if ((*mask)[static_cast<std::size_t>(row * width + i)] != 0) length = i + 1;
    }
    if (length < 1 || length > model.longest) return {};
    for (std::int64_t i = 0; i < length; ++i) {
      const auto id = given_ids[static_cast<std::size_t>(row * width + i)];
      if (id < 0 || id >= model.vocabulary) return {};
    }
    out.push_back(static_cast<std::int32_t>(length));
  }
  return out;
}

Request row(const Request& request, const ModelSpec& model, std::size_t index, std::int32_t length,
            const RuntimeInfo& runtime) {
  const std::int32_t padded = runtime.dynamic ? length : runtime.max_length;
  Request out;
  out.set_model_name(runtime.name);
  out.set_id(request.id());
  for (const auto& [key, value] : request.parameters()) {
    if (use_of(key, value) == Use::kForward) (*out.mutable_parameters())[key] = value;
  }
  for (const auto& spec : model.outputs) {
    if (!request.outputs().empty() && is_requested(request, spec.name)) out.add_outputs()->set_name(spec.name);
  }
  const auto& ids = request.inputs(find_input(request, model.inputs[model.ids].name));
  const std::int64_t width = ids.shape(1);
  for (const auto& spec : model.inputs) {
    auto* input = out.add_inputs();
    input->set_name(spec.name);
    input->set_datatype(spec.datatype);
    input->add_shape(1);
    input->add_shape(padded);
    const int given = find_input(request, spec.name);
    Values values(static_cast<std::size_t>(length), spec.role == Role::kMask ? 1 : spec.pad_value);
    if (given >= 0) {
      const auto all = values_of(request, given, spec, ids.shape(0), width);
      const auto from = all->begin() + static_cast<std::ptrdiff_t>(index) * width;
      values.assign(from, from + length);
    }
    values.resize(static_cast<std::size_t>(padded), spec.pad_value);
    auto* raw = out.add_raw_input_contents();
    for (const auto value : values) append(raw, value, spec.item);
  }
  return out;
}

std::optional<Response> merge(const std::vector<Response>& workers, const Request& request, const ModelSpec& model,
                              const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& padded,
                              const Timing& timing, bool streamed) {
  Response out;
  out.set_model_name(model.name);
  out.set_model_version("1");
  out.set_id(request.id());
  set_parameter(&out, "level", timing.level);
  set_parameter(&out, "max_length", timing.max_length);
  set_parameter(&out, "queue_us", timing.queue_us);
  set_parameter(&out, "execute_us", timing.execute_us);
  set_parameter(&out, "total_us", timing.total_us);
  set_parameter(&out, "computed_tokens", timing.computed_tokens);
  set_parameter(&out, "demoted", timing.demoted);
  set_parameter(&out, "batch_rows", timing.batch_rows);
  const auto wants = request.parameters().find("triton_enable_empty_final_response");
  if (streamed && wants != request.parameters().end() && wants->second.has_bool_param() && wants->second.bool_param()) {
    (*out.mutable_parameters())["triton_final_response"].set_bool_param(true);
  }
  const std::int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (const auto& spec : model.outputs) {
    if (!is_requested(request, spec.name)) continue;
    std::string raw;
    Values tail;
    for (std::size_t r = 0; r < workers.size(); ++r) {
      auto piece = piece_of(workers[r], spec, padded[r]);
      if (!piece || (r != 0 && piece->tail != tail)) return {};
      tail = piece->tail;
      if (spec.token_level) {
        piece->raw.resize(static_cast<std::size_t>(lengths[r]) * piece->token_bytes);
        piece->raw.resize(static_cast<std::size_t>(longest) * piece->token_bytes, '\0');
      }
      raw += piece->raw;
    }
    auto* output = out.add_outputs();
    output->set_name(spec.name);
    output->set_datatype(spec.datatype);
    output->add_shape(static_cast<std::int64_t>(workers.size()));
    if (spec.token_level) output->add_shape(longest);
    for (const auto dim : tail) output->add_shape(dim);
    out.add_raw_output_contents(raw);
  }
  return out;
}

std::string difference(const google::protobuf::Message& expected, const google::protobuf::Message& actual) {
  google::protobuf::util::MessageDifferencer differencer;
  google::protobuf::util::DefaultFieldComparator same_nan;
  same_nan.set_treat_nan_as_equal(true);
  differencer.set_field_comparator(&same_nan);
  std::string report;
  differencer.ReportDifferencesToString(&report);
  return differencer.Compare(expected, actual) ? "" : "differs: " + report;
}

std::string check_request(const std::string& body, const ModelSpec& model, const RequestLimits& limits,
                          const std::vector<RuntimeInfo>& runtimes) {
  const google::protobuf::LogSilencer silencer;
  InferRequest request;
  auto fault = request.parse(body);
  if (!fault) fault = request.bind(model, limits);
  if (fault && fault->message.empty()) return "a fault without words";

  Request parsed;
  const bool parses = parsed.ParseFromString(body);
  std::optional<std::vector<std::int32_t>> wanted;
  if (parses) wanted = lengths(parsed, model, limits);
  // Near the limit of bytes, what came and what protobuf makes of it may lie on two sides of it.
  const bool at_limit = parses && parameters_of(parsed).bytes > 15 * 1024;
  if (!fault && !at_limit) {
    if (parses && !wanted) return "accepted, but must be refused: " + parsed.ShortDebugString();
    if (parses && *wanted != request.lengths()) return "other lengths than protobuf's reading";
    for (std::size_t r = 0; r < request.lengths().size(); ++r) {
      const std::int32_t length = request.lengths()[r];
      if (length < 1 || length > model.longest) return "an impossible length " + std::to_string(length);
      for (const auto& runtime : runtimes) {
        if (length > runtime.max_length) continue;
        Request sent;
        if (!sent.ParseFromString(written_row(request, r, runtime))) return "the row sent on does not parse";
        if (!parses) continue;
        const auto text = difference(row(parsed, model, r, length, runtime), sent);
        if (!text.empty()) return "row " + std::to_string(r) + " for " + runtime.name + " " + text;
      }
    }
  }
  if (!parses) return "";

  parsed.DiscardUnknownFields();
  const std::string again = parsed.SerializeAsString();
  InferRequest canonical;
  auto refusal = canonical.parse(again);
  if (!refusal) refusal = canonical.bind(model, limits);
  wanted = lengths(parsed, model, limits);
  if (wanted.has_value() == refusal.has_value()) {
    return "as protobuf writes it: refused for " + says(refusal) + ", but must be " +
           (wanted ? "accepted" : "refused") + ": " + parsed.ShortDebugString();
  }
  return "";
}

std::string check_response(const std::string& body, const std::string& answer, const ModelSpec& model,
                           const RequestLimits& limits, const RuntimeInfo& runtime) {
  const google::protobuf::LogSilencer silencer;
  InferRequest request;
  if (request.parse(body) || request.bind(model, limits)) return "";
  std::vector<std::int32_t> padded;
  for (const auto length : request.lengths()) {
    if (length > runtime.max_length) return "";
    padded.push_back(WorkerRequest::tokens(length, runtime));
  }
  const Timing timing{.level = 64,
                      .queue_us = 1,
                      .execute_us = 200,
                      .total_us = 300'000,
                      .computed_tokens = 7,
                      .demoted = 0,
                      .batch_rows = 1};
  std::string problem;
  const auto merged = merged_answer(request, answer, model, padded, timing, &problem);
  if (!problem.empty()) return problem;

  Request parsed_request;
  Response parsed;
  if (!parsed_request.ParseFromString(body) || !parsed.ParseFromString(answer)) return "";
  const std::vector<Response> workers(padded.size(), parsed);
  const auto wanted = merge(workers, parsed_request, model, request.lengths(), padded, timing, true);
  if (merged && !wanted) return "the worker's answer was accepted, but must be refused: " + parsed.ShortDebugString();
  if (merged) {
    const auto text = difference(*wanted, *merged);
    if (!text.empty()) return "the merged answer " + text;
  }
  parsed.DiscardUnknownFields();
  const auto canonical = merged_answer(request, parsed.SerializeAsString(), model, padded, timing, &problem);
  if (!problem.empty()) return problem;
  if (canonical.has_value() != wanted.has_value()) {
    return std::string("as protobuf writes it: the worker's answer was ") + (canonical ? "accepted" : "refused") +
           ", but must not be: " + parsed.ShortDebugString();
  }
  return "";
}

}  // namespace arlo::gateway::reference
