#include "rewrite/request.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/ascii.h"
#include "base/utf8.h"
#include "base/wire.h"
#include "rewrite/fields.h"
#include "rewrite/spec.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kMaxIdBytes = 4096;
// Limits on a message besides its tensors. Millions of parts of a few bytes each would take gigabytes of views, and
// seconds of the thread that all clients share; parameters are written into the request of every row.
constexpr std::size_t kMaxParts = 64;  // inputs, outputs, raw contents, parameters; of each
constexpr std::size_t kMaxDims = 16;
constexpr std::size_t kMaxParameterBytes = 16 * 1024;         // of all parameters of a message
constexpr std::size_t kMaxFields = 65536;                     // of all kinds, unknown ones included
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;  // of one input; no message holds as many

MaybeFault malformed(const std::string& where) {
  return invalid("malformed ModelInferRequest: " + where + " does not parse");
}

MaybeFault malformed_parameter(const std::string& where) {
  return invalid("malformed ModelInferRequest: " + where + " does not parse or is not UTF-8");
}

MaybeFault too_many(const std::string& what) {
  return invalid("the request has too many " + what + ": at most " + std::to_string(kMaxParts) + " are taken");
}

// A map<string, InferParameter> entry.
struct Parameter {
  std::string_view key;
  std::uint32_t kind = 0;  // ParameterField, 0: unset
  std::uint64_t number = 0;
  std::string_view text;
};

// Several fields of the value: the last one counts, as in protobuf. Fields of a later protocol do not.
bool read_value(std::string_view value, Parameter* out) {
  wire::Reader reader(value);
  while (reader.next()) {
    const bool text = reader.is(kString, wire::kBytes);
    if (!text && !reader.is(kBool, wire::kVarint) && !reader.is(kInt64, wire::kVarint) &&
        !reader.is(kUint64, wire::kVarint) && !reader.is(kDouble, wire::kFixed64)) {
      continue;
    }
    if (text && !valid_utf8(reader.bytes())) return false;
    out->kind = reader.field();
    out->text = text ? reader.bytes() : std::string_view{};
    out->number = text ? 0 : reader.number();
  }
  return reader.ok();
}

// Returns false for entries that protobuf would refuse: they are forwarded as is, and a worker must not fail on one.
bool read_parameter(std::string_view entry, Parameter* out) {
  wire::Reader reader(entry);
  while (reader.next()) {
    if (reader.is(1, wire::kBytes)) {
      out->key = reader.bytes();
      if (!valid_utf8(out->key)) return false;
    } else if (reader.is(2, wire::kBytes)) {
      if (!read_value(reader.bytes(), out)) return false;
    }
  }
  return reader.ok();
}

std::string shape_text(const std::string& rows, std::span<const std::int64_t> dims) {
  std::string text = "[";
  text += rows;
  for (const auto dim : dims) text.append(", ").append(std::to_string(dim));
  text += "]";
  return text;
}

// How a datatype is written in InferTensorContents; kind 0: it has no form there.
struct Typed {
  std::uint32_t field;
  wire::Type kind;
  const char* name;
};

Typed typed_of(std::string_view datatype) {
  if (datatype == "INT64") return {kInt64Contents, wire::kVarint, "int64_contents"};
  if (datatype == "UINT64") return {kUint64Contents, wire::kVarint, "uint64_contents"};
  if (datatype == "FP32") return {kFp32Contents, wire::kFixed32, "fp32_contents"};
  if (datatype == "FP64") return {kFp64Contents, wire::kFixed64, "fp64_contents"};
  if (datatype.starts_with("INT")) return {kIntContents, wire::kVarint, "int_contents"};
  if (datatype.starts_with("UINT")) return {kUintContents, wire::kVarint, "uint_contents"};
  return {0, wire::kVarint, ""};
}

}  // namespace

MaybeFault InferRequest::parse(std::string_view body) {
  constexpr std::size_t kUsual = 3;  // inputs
  tensors_.reserve(kUsual);
  raw_.reserve(kUsual);
  wire::Reader reader(body);
  while (reader.next()) {
    if (auto fault = count_field()) return fault;
    if (reader.type() != wire::kBytes) {
      if (reader.field() <= kRaw) return malformed("a field");
      continue;
    }
    MaybeFault fault;
    switch (reader.field()) {
      case kName:
        model_name_ = reader.bytes();
        break;
      case kVersion:
        model_version_ = reader.bytes();
        break;
      case kId:
        id_ = reader.bytes();
        break;
      case kParameters:
        fault = parse_parameter(reader.bytes());
        break;
      case kInputs:
        fault = parse_input(reader.bytes());
        break;
      case kOutputs:
        fault = parse_output(reader.bytes());
        break;
      case kRaw:
        if (raw_.size() == kMaxParts) return too_many("raw_input_contents");
        raw_.push_back(reader.bytes());
        break;
      default:
        break;  // a field of a later protocol: not ours to judge
    }
    if (fault) return fault;
  }
  if (!reader.ok()) return malformed("the message");
  if (id_.size() > kMaxIdBytes)
    return invalid("id has " + std::to_string(id_.size()) + " bytes; at most 4096 are taken");
  if (!valid_utf8(id_)) return invalid("id is not UTF-8");
  if (std::max(model_name_.size(), model_version_.size()) > kMaxIdBytes) {
    return invalid("model_name and model_version have at most 4096 bytes");
  }
  return {};
}

MaybeFault InferRequest::count_field() {
  if (++fields_ <= kMaxFields) return {};
  return invalid("the request has more than " + std::to_string(kMaxFields) + " fields");
}

MaybeFault InferRequest::count_parameter(std::string_view entry) {
  if (++parameters_ > kMaxParts) return too_many("parameters");
  parameter_bytes_ += entry.size();
  if (parameter_bytes_ <= kMaxParameterBytes) return {};
  return invalid("the request's parameters have more than " + std::to_string(kMaxParameterBytes) + " bytes");
}

MaybeFault InferRequest::parse_parameter(std::string_view entry) {
  if (auto fault = count_parameter(entry)) return fault;
  Parameter parameter;
  if (!read_parameter(entry, &parameter)) return malformed_parameter("a parameter");
  const auto key = parameter.key;
  if (key == "sequence_id") {
    if (parameter.number != 0 || !parameter.text.empty()) {
      return invalid("sequence_id is set: rows go to different instances, so sequences cannot be served; leave it 0");
    }
    return {};
  }
  if (key == "sequence_start" || key == "sequence_end" || key == "priority") return {};  // of no effect here
  if (key == "timeout") {
    const auto value = static_cast<std::int64_t>(parameter.number);
    if (parameter.kind != kInt64 || value < 0) {
      return invalid("parameter timeout must be an int64_param of microseconds, 0 or more");
    }
    timeout_us_ = value;
    return {};
  }
  if (key == "arlo_class") {
    if (parameter.kind != kString || (parameter.text != "bulk" && parameter.text != "interactive")) {
      return invalid("parameter arlo_class must be a string_param: interactive or bulk");
    }
    bulk_ = parameter.text == "bulk";
    says_class_ = true;
    return {};
  }
  if (key == "truncate") return parse_truncate(parameter.kind, parameter.number, parameter.text);
  if (key.substr(0, 7) == "cascade") return parse_wish(key, parameter.kind, parameter.number, parameter.text);
  if (key == "triton_enable_empty_final_response") {
    wants_final_response_ = parameter.kind == kBool && parameter.number != 0;
    return {};
  }
  if (key.substr(0, 7) == "triton_") {
    return invalid("parameter " + quoted(key) + ": names that start with triton_ are reserved by Triton");
  }
  // To other models they are parameters like any.
  if (key == "utility" || key == "min_accuracy") parse_flow_wish(key, parameter.kind, parameter.number, parameter.text);
  if (key == "pin" || key == "tenant") {
    if (parameter.kind != kString) flow_wishes_.wrong = key;
    (key == "pin" ? flow_wishes_.pin : flow_wishes_.tenant) = parameter.text;
  }
  if (key == "prompt_name") prompt_name_ = {entry, parameter.text, parameter.kind == kString};
  if (key == "input_type") input_type_ = {entry, parameter.text, parameter.kind == kString};
  if (key == "dimensions") dimensions_entry_ = entry;
  if (key == kTask) {
    task_entry_ = entry;
    task_name_ = parameter.text;
    task_is_text_ = parameter.kind == kString;
  }
  forwarded_.push_back(entry);
  forwarded_size_ += wire::field_size(entry.size());
  return {};
}

MaybeFault InferRequest::read_dimensions() {
  const int vector = model_->flow != nullptr ? -1 : model_->vector_output(false);
  if (vector < 0) return {};
  cut_to_ = model_->cut_to();
  Parameter parameter;
  if (dimensions_entry_.empty() || !read_parameter(dimensions_entry_, &parameter)) return {};
  const auto whole = model_->outputs[static_cast<std::size_t>(vector)].dims[0];
  cut_to_ = static_cast<std::int64_t>(parameter.number);
  if (parameter.kind != kInt64 || cut_to_ < 1 || (whole >= 0 && cut_to_ > whole)) {
    return invalid("parameter dimensions must be an int64_param of 1 to " +
                   (whole < 0 ? "the size of a vector" : std::to_string(whole)));
  }
  forget_parameter(dimensions_entry_);
  return {};
}

void InferRequest::parse_flow_wish(std::string_view key, std::uint32_t kind, std::uint64_t number,
                                   std::string_view text) {
  double value = kind == kDouble ? std::bit_cast<double>(number) : static_cast<double>(number);
  bool known = kind == kDouble || kind == kInt64 || kind == kUint64;
  if (kind == kString) {  // clients that know no doubles
    known = text.find_first_of("eE") == std::string_view::npos && read_number(text, &value);
  }
  const double most = key == "utility" ? 1e9 : 1;
  if (known && value >= 0 && value <= most) {
    (key == "utility" ? flow_wishes_.utility : flow_wishes_.min_accuracy) = value;
  } else {
    flow_wishes_.wrong = key;
  }
}

MaybeFault InferRequest::parse_truncate(std::uint32_t kind, std::uint64_t number, std::string_view text) {
  if (kind == kBool) {
    truncate_ = number != 0 ? Truncate::kCut : Truncate::kNone;
  } else if (kind == kString && text == "NONE") {
    truncate_ = Truncate::kNone;
  } else if (kind == kString && text == "START") {
    truncate_ = Truncate::kStart;
  } else if (kind == kString && text == "END") {
    truncate_ = Truncate::kEnd;
  } else {
    return invalid("parameter truncate must be a string_param: NONE, START or END; or a bool_param");
  }
  return {};
}

MaybeFault InferRequest::parse_wish(std::string_view key, std::uint32_t kind, std::uint64_t number,
                                    std::string_view text) {
  wishes_.any = true;
  if (key == "cascade") {
    if (kind != kString || text.empty()) {
      return invalid("parameter cascade must be a string_param: an operating point, first, or last");
    }
    wishes_.point = text;
    return {};
  }
  if (key == "cascade_min_confidence") {
    wishes_.least = std::bit_cast<double>(number);
    if (kind == kDouble && wishes_.least >= 0 && wishes_.least <= 1) return {};
    return invalid("parameter cascade_min_confidence must be a double_param of 0 to 1");
  }
  if (key == "cascade_max_stage") {
    wishes_.last = static_cast<std::int64_t>(number);
    if (kind == kInt64 && wishes_.last >= 0) return {};
    return invalid("parameter cascade_max_stage must be an int64_param: the number of a stage, from 0");
  }
  if (key == "cascade_seed") {
    wishes_.seeded = true;
    wishes_.seed = number;
    if (kind == kInt64 || kind == kUint64) return {};
    return invalid("parameter cascade_seed must be an int64_param");
  }
  if (key == "cascade_partial") {
    wishes_.partial = number != 0;
    if (kind == kBool) return {};
    return invalid("parameter cascade_partial must be a bool_param");
  }
  return invalid("unknown parameter " + quoted(key) +
                 "; of a cascade there are cascade, cascade_min_confidence, cascade_max_stage, cascade_seed and "
                 "cascade_partial");
}

void InferRequest::ids(std::size_t row, std::vector<std::int64_t>& out) const {
  out.clear();
  if (model_->of_tensors()) return;
  const std::size_t item = model_->inputs[model_->ids].item;
  const char* at = cell(row, model_->ids).data();
  out.resize(static_cast<std::size_t>(lengths_[row]));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(read_id(at + i * item, item));
}

MaybeFault InferRequest::parse_input(std::string_view body) {
  if (tensors_.size() == kMaxParts) return too_many("inputs");
  Tensor tensor;
  wire::Reader reader(body);
  auto add_dim = [&tensor](std::uint64_t value) {
    if (tensor.dims < std::size(tensor.shape)) tensor.shape[tensor.dims] = static_cast<std::int64_t>(value);
    ++tensor.dims;
  };
  while (reader.next()) {
    if (auto fault = count_field()) return fault;
    if (reader.is(kTensorName, wire::kBytes)) {
      tensor.name = reader.bytes();
    } else if (reader.is(kDatatype, wire::kBytes)) {
      tensor.datatype = reader.bytes();
    } else if (reader.is(kShape, wire::kBytes)) {
      if (reader.bytes().size() > kMaxDims * 10) return malformed("an input's shape");
      if (!wire::for_each_packed(reader.bytes(), add_dim)) return malformed("an input's shape");
    } else if (reader.is(kShape, wire::kVarint)) {
      add_dim(reader.number());
    } else if (reader.is(kTensorParameters, wire::kBytes)) {
      if (auto fault = count_parameter(reader.bytes())) return fault;
      Parameter parameter;
      if (!read_parameter(reader.bytes(), &parameter)) return malformed_parameter("an input's parameter");
      if (parameter.key.substr(0, 13) == "shared_memory") {
        return Fault{Code::kUnimplemented,
                     "input " + quoted(tensor.name) +
                         " uses shared memory, which the gateway cannot reach: send the tensor in "
                         "the request"};
      }
    } else if (reader.is(kContents, wire::kBytes)) {
      if (!tensor.contents.empty()) return invalid("input " + quoted(tensor.name) + " has its contents twice");
      tensor.contents = reader.bytes();
      tensor.typed = !tensor.contents.empty();
    } else if (reader.field() <= kContents) {
      return malformed("an input");
    }
  }
  if (!reader.ok()) return malformed("an input");
  tensors_.push_back(tensor);
  return {};
}

MaybeFault InferRequest::parse_output(std::string_view body) {
  if (output_names_.size() == kMaxParts) return too_many("outputs");
  wire::Reader reader(body);
  std::string_view name;
  while (reader.next()) {
    if (auto fault = count_field()) return fault;
    if (reader.is(1, wire::kBytes)) name = reader.bytes();
    if (reader.is(2, wire::kBytes)) {
      if (auto fault = count_parameter(reader.bytes())) return fault;
      Parameter parameter;
      if (!read_parameter(reader.bytes(), &parameter)) return malformed_parameter("an output's parameter");
      if (parameter.key.substr(0, 13) == "shared_memory") {
        return Fault{Code::kUnimplemented,
                     "output " + quoted(name) + " asks for shared memory, which the gateway cannot reach"};
      }
      if (parameter.key == "classification" && (parameter.number != 0 || !parameter.text.empty())) {
        return Fault{
            Code::kUnimplemented,
            "output " + quoted(name) + " asks for classification, which the gateway does not do: take the tensor"};
      }
    }
  }
  if (!reader.ok()) return malformed("an output");
  output_names_.push_back(name);
  return {};
}

bool InferRequest::has_text() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& t) { return t.name == kText || t.name == kTextPair; });
}

MaybeFault InferRequest::bind(const ModelSpec& model, const RequestLimits& limits, text::Job* job) {
  model_ = &model;
  if (wishes_.any && model.cascade == nullptr) {
    return invalid("model '" + model.name + "' is no cascade, and takes none of its parameters");
  }
  if (model.flow != nullptr && !flow_wishes_.wrong.empty()) {
    return invalid("parameter " + quoted(flow_wishes_.wrong) +
                   " must be a double_param: utility 0 to 1e9, min_accuracy 0 to 1; pin and tenant a string_param");
  }
  outputs_ = output_names_.empty() ? model.usual : 0;
  for (const auto name : output_names_) {
    const int output = model.find_output(name);
    if (output < 0 || (model.inner >> output & 1) != 0)
      return invalid("unknown output " + quoted(name) + " of model '" + model.name + "'");
    const OutputSet bit = OutputSet{1} << output;
    if ((outputs_ & bit) != 0) return invalid("output " + quoted(name) + " is asked for twice");
    outputs_ |= bit;
  }

  decoded_.clear();
  others_.clear();
  decoded_.reserve(tensors_.size() + model.inputs.size() + 1);  // views into short ones would not outlive a move
  forget_task_parameter();
  if (auto fault = read_dimensions()) return fault;
  const bool raw_given = !raw_.empty();
  if (raw_given && std::ranges::any_of(tensors_, &Tensor::typed)) {
    return invalid("raw_input_contents and typed contents are mixed: use one of them");
  }
  if (raw_given && raw_.size() != tensors_.size()) {
    return invalid("raw_input_contents has " + std::to_string(raw_.size()) + " entries for " +
                   std::to_string(tensors_.size()) + " inputs; one each is needed");
  }
  if (has_text()) return bind_texts(limits, raw_given, job);
  if (!model.wordings.empty()) {
    return invalid("model '" + model.name +
                   "' has stages of different vocabularies: send the input 'text' in place of token ids");
  }
  if (truncate_ != Truncate::kUnsaid) return invalid("parameter truncate is of text; token ids are never cut here");
  // Shape first: every per-token input must have the shape of the ids.
  const auto& leading = model.inputs[model.ids];
  const auto first = std::ranges::find(tensors_, leading.name, &Tensor::name);
  if (first == tensors_.end()) return missing(leading);
  if (model.of_tensors() && first->dims == 0) return check_shape(*first, leading);
  if (!model.of_tensors() && first->dims != 2) {
    return invalid("input '" + leading.name + "' has " + std::to_string(first->dims) +
                   " dimensions; 2 are needed: [rows, tokens]");
  }
  if (auto fault = count_rows(*first, limits)) return fault;
  // Rows that a pipeline makes may outlive the request; decoded numbers would not.
  if (model.of_tensors() && !raw_given && model.flow != nullptr) {
    return invalid("inputs of model '" + model.name + "' must be sent in raw_input_contents");
  }
  width_ = model.of_tensors() ? 0 : first->shape[1];
  if (width_ < 0 || width_ > kMaxElements / rows_) {
    return invalid("input '" + leading.name + "' has an impossible width of " + std::to_string(width_) + " tokens");
  }
  if (auto fault = bind_inputs(raw_given)) return fault;
  if (model.of_tensors()) return measure_rows();
  const char* const mask = model.mask < 0 ? nullptr : cell(0, static_cast<std::size_t>(model.mask)).data();
  return find_lengths(model, cell(0, model.ids).data(), mask, rows_, width_, lengths_);
}

MaybeFault InferRequest::missing(const InputSpec& spec) const {
  return invalid("input '" + spec.name + "' of model '" + model_->name + "' is missing");
}

MaybeFault InferRequest::bind_inputs(bool raw_given) {
  cells_.assign(static_cast<std::size_t>(rows_) * model_->inputs.size(), {});
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (names_tasks(tensors_[i])) continue;
    if (auto fault = bind_input(i, raw_given)) return fault;
  }
  if (auto fault = read_tasks(raw_given)) return fault;
  for (std::size_t i = 0; i < model_->inputs.size(); ++i) {
    const auto& spec = model_->inputs[i];
    const bool made_up = spec.role == Role::kMask || spec.optional;
    if (cell(0, i).data() == nullptr && !made_up) return missing(spec);
  }
  return {};
}

MaybeFault InferRequest::count_rows(const Tensor& first, const RequestLimits& limits) {
  rows_ = first.shape[0];
  if (rows_ >= 1 && rows_ <= limits.max_rows) return {};
  const std::string what = "input '" + std::string(first.name) + "' has " + std::to_string(rows_) + " rows; at ";
  if (rows_ < 1) return invalid(what + "least 1 is needed");
  return invalid(what + "most " + std::to_string(limits.max_rows) + " are taken in one request");
}

MaybeFault InferRequest::bind_input(std::size_t at, bool raw_given) {
  const Tensor& tensor = tensors_[at];
  const int index = model_->find_input(tensor.name);
  if (index < 0) return invalid("unknown input " + quoted(tensor.name) + " of model '" + model_->name + "'");
  const auto input = static_cast<std::size_t>(index);
  const auto& spec = model_->inputs[input];
  const auto wrong = [&spec](const std::string& why) { return invalid("input '" + spec.name + "' " + why); };
  if (cell(0, input).data() != nullptr) return wrong("is given twice");
  if (tensor.datatype != spec.datatype) {
    return wrong("has datatype " + quoted(tensor.datatype) + "; " + spec.datatype + " is needed");
  }
  if (auto fault = check_shape(tensor, spec)) return fault;
  const auto length = static_cast<std::size_t>(spec.ragged() ? tensor.shape[1] : width_);
  if (spec.ragged() && length > static_cast<std::size_t>(model_->longest)) {
    return wrong("has length " + std::to_string(length) + "; model '" + model_->name + "' takes 1 to " +
                 std::to_string(model_->longest));
  }
  if (!raw_given && spec.item == 0) return wrong("of datatype BYTES must come as raw_input_contents");
  if (spec.item == 0) return cut_bytes(raw_[at], input);
  const auto rows = static_cast<std::size_t>(rows_);
  const std::size_t elements = spec.elements(length);
  const char* data = nullptr;
  if (!raw_given) {
    if (auto fault = decode_typed(tensor, spec, rows * elements, &data)) return fault;
  } else {
    const std::size_t bytes = rows * elements * spec.item;
    if (raw_[at].size() != bytes) {
      return wrong("carries " + std::to_string(raw_[at].size()) + " bytes; its shape and datatype need " +
                   std::to_string(bytes));
    }
    data = raw_[at].data();
  }
  set_cells(input, data, elements * spec.item);
  return {};
}

void InferRequest::set_cells(std::size_t input, const char* data, std::size_t each) {
  const std::size_t stride = model_->inputs.size();
  for (std::size_t i = input; i < cells_.size(); i += stride, data += each) cells_[i] = {data, each};
}

MaybeFault InferRequest::check_shape(const Tensor& tensor, const InputSpec& spec) const {
  const bool fixed = spec.role == Role::kTensor;
  const std::span<const std::int64_t> dims = fixed ? std::span(spec.dims) : std::span(&width_, 1);
  const bool same = tensor.dims == dims.size() + 1 && tensor.shape[0] == rows_ &&
                    std::equal(dims.begin(), dims.end(), std::begin(tensor.shape) + 1,
                               [](auto wanted, auto is) { return wanted == is || (wanted < 0 && is >= 0); });
  if (same) return {};
  std::string shape;
  for (std::size_t i = 0; i < std::min(tensor.dims, std::size(tensor.shape)); ++i) {
    shape += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  if (tensor.dims > std::size(tensor.shape)) shape += ", ...";
  const auto& first = model_->inputs[model_->ids];
  const std::string needed = shape_text(&spec == &first ? "rows" : std::to_string(rows_), dims);
  return invalid("input '" + spec.name + "' has shape [" + shape + "]; " + needed + " is needed" +
                 (&spec == &first ? "" : ", as of '" + first.name + "'"));
}

MaybeFault InferRequest::decode_typed(const Tensor& tensor, const InputSpec& spec, std::size_t elements,
                                      const char** data) {
  // A row's width is bounded by the bytes that arrived: a varint takes at least one byte.
  if (elements > tensor.contents.size()) {
    return invalid("input '" + spec.name + "' carries fewer elements than the " + std::to_string(elements) +
                   " that its shape needs");
  }
  const Typed wanted = typed_of(spec.datatype);
  if (wanted.field == 0) {
    return invalid("input '" + spec.name + "' of datatype " + spec.datatype + " must come as raw_input_contents");
  }
  std::string values;
  values.resize(elements * spec.item);
  std::size_t count = 0;
  auto add = [&](std::uint64_t value) {
    if (count < elements) std::memcpy(values.data() + count * spec.item, &value, spec.item);
    ++count;
  };
  wire::Reader reader(tensor.contents);
  while (reader.next()) {
    if (count > elements) break;  // refused below; the rest need not be read
    if (reader.is(wanted.field, wire::kBytes) && wanted.kind == wire::kVarint) {
      if (!wire::for_each_packed(reader.bytes(), add)) return malformed("typed contents");
    } else if (reader.is(wanted.field, wire::kBytes)) {  // numbers of a fixed size lie there as they do in raw contents
      const auto given = reader.bytes();
      if (given.size() % spec.item != 0) return malformed("typed contents");
      const std::size_t more = given.size() / spec.item;
      if (count + more <= elements) std::memcpy(values.data() + count * spec.item, given.data(), given.size());
      count += more;
    } else if (reader.is(wanted.field, wanted.kind)) {
      add(reader.number());
    } else {
      return invalid("input '" + spec.name + "' of datatype " + spec.datatype + " must use " + wanted.name);
    }
  }
  if (!reader.ok()) return malformed("typed contents");
  if (count != elements) {
    return invalid("input '" + spec.name + "' carries " + std::to_string(count) + " elements; its shape needs " +
                   std::to_string(elements));
  }
  decoded_.push_back(std::move(values));
  *data = decoded_.back().data();
  return {};
}

}  // namespace arlo::gateway
