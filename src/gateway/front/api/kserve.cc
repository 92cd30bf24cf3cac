// KServe's v2 protocol over HTTP with Triton's binary tensors: converts requests to ModelInferRequest and answers back.
#include <google/protobuf/util/json_util.h>

#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/ascii.h"
#include "base/utf8.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are little-endian on the wire");

constexpr std::size_t kMostParameters = 256;
constexpr std::size_t kMostTensors = 256;  // of inputs, and of outputs
constexpr const char* kBinarySize = "binary_data_size";

template <class T>
struct Named {
  std::string_view name;
};
// Calls `then` with a value of the datatype's C++ type. Returns false if there is none.
template <class Then>
bool of_type(std::string_view datatype, Then then) {
  constexpr std::tuple kTypes(Named<std::int64_t>{"INT64"}, Named<std::int32_t>{"INT32"}, Named<std::int16_t>{"INT16"},
                              Named<std::int8_t>{"INT8"}, Named<std::uint64_t>{"UINT64"},
                              Named<std::uint32_t>{"UINT32"}, Named<std::uint16_t>{"UINT16"},
                              Named<std::uint8_t>{"UINT8"}, Named<bool>{"BOOL"}, Named<float>{"FP32"},
                              Named<double>{"FP64"}, Named<std::string>{"BYTES"});
  const auto is = [&]<class T>(const Named<T>& named) {
    if (named.name == datatype) then(T{});
    return named.name == datatype;
  };
  return std::apply([&](const auto&... named) { return (is(named) || ...); }, kTypes);
}

// Writes the values of a tensor, flat or nested by its shape.
template <class T>
MaybeFault append_values(const json& data, const std::string& what, std::string* out) {
  for (const auto& each : data) {
    if (each.is_array()) {
      if (auto fault = append_values<T>(each, what, out)) return fault;
      continue;
    }
    T value{};
    if constexpr (std::is_same_v<T, std::string>) {
      if (!each.is_string()) return invalid(what + " of datatype BYTES has something else than texts");
      const auto& text = each.get_ref<const std::string&>();
      out->resize(out->size() + sizeof(std::uint32_t) + text.size());
      put_element(text, out->data() + out->size() - sizeof(std::uint32_t) - text.size());
      continue;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!each.is_boolean() && each != 0 && each != 1)
        return invalid(what + " has something else than true and false");
      value = each.is_boolean() ? each.get<bool>() : each == 1;
    } else if constexpr (std::is_integral_v<T>) {
      const bool fits = each.is_number_unsigned()
                            ? std::in_range<T>(each.get<std::uint64_t>())
                            : each.is_number_integer() && std::in_range<T>(each.get<std::int64_t>());
      if (!fits) return invalid(what + " has a number that its datatype does not hold");
      value = each.get<T>();
    } else {
      if (!each.is_number()) return invalid(what + " has something else than numbers");
      value = static_cast<T>(each.get<double>());
    }
    out->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return {};
}

MaybeFault append_data(const json& data, const std::string& datatype, const std::string& what, std::string* out) {
  if (!data.is_array()) return invalid(what + ": data must be a list");
  MaybeFault fault;
  const bool known = of_type(datatype, [&]<class T>(const T&) { fault = append_values<T>(data, what, out); });
  if (known) return fault;
  return invalid(what + ": datatype " + arlo::quoted(datatype) + " has no form in JSON; send it as binary data");
}

MaybeFault read_parameter(const std::string& key, const json& value, inference::InferParameter* out) {
  if (value.is_boolean()) {
    out->set_bool_param(value.get<bool>());
  } else if (value.is_number_integer()) {
    if (!whole(value)) {
      return invalid("parameter " + arlo::quoted(key) + " is larger than any number that is taken");
    }
    out->set_int64_param(value.get<std::int64_t>());
  } else if (value.is_number()) {
    out->set_double_param(value.get<double>());
  } else if (value.is_string()) {
    out->set_string_param(value.get<std::string>());
  } else {
    return invalid("parameter " + arlo::quoted(key) + " must be a text, a number, true or false");
  }
  return {};
}

template <class Map>
MaybeFault read_parameters(const Fields& from, Map* out) {
  const json* found = from.given("parameters");
  if (found == nullptr) return {};
  if (!found->is_object()) return invalid("parameters must be an object");
  if (found->size() > kMostParameters) return invalid("there are too many parameters");
  for (const auto& [key, value] : found->items()) {
    if (auto fault = read_parameter(key, value, &(*out)[key])) return fault;
  }
  return {};
}

// Removes a parameter meant for this port from the others.
template <class Map>
MaybeFault take_flag(const char* key, Map* parameters, bool* out, bool* given = nullptr) {
  const auto found = parameters->find(key);
  if (found == parameters->end()) return {};
  if (!found->second.has_bool_param()) return invalid(std::string("parameter ") + key + " must be true or false");
  *out = found->second.bool_param();
  if (given != nullptr) *given = true;
  parameters->erase(found);
  return {};
}

template <class T>
MaybeFault write_values(std::string_view raw, std::int64_t rows, json* out) {
  if constexpr (std::is_same_v<T, std::string>) {
    for (std::string_view element; take_element(raw, element);) out->push_back(std::string(element));
  } else {
    using Stored = std::conditional_t<std::is_same_v<T, bool>, char, T>;
    std::vector<Stored> values(raw.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      const auto each = rows > 0 ? values.size() / static_cast<std::size_t>(rows) : values.size();
      if (auto fault = check_finite<T>(values, each)) {
        fault->message += "; as binary data, and over gRPC, they come as they are";
        return fault;
      }
    }
    if constexpr (std::is_same_v<T, bool>) {
      for (const char value : values) out->push_back(value != 0);
    } else {
      *out = values;
    }
  }
  return {};
}

MaybeFault write_data(const std::string& datatype, std::string_view raw, std::int64_t rows, json* out) {
  *out = json::array();
  MaybeFault fault;
  const bool known = of_type(datatype, [&]<class T>(const T&) { fault = write_values<T>(raw, rows, out); });
  if (known) return fault;
  return invalid("an output of datatype " + datatype + " has no form in JSON; ask for it as binary data");
}

class Infer final : public ApiTask {
 public:
  Infer() : ApiTask(Dialect::kKserve) {}

  MaybeFault read(const ApiBody& from) override {
    model_ = from.path_model;
    version_ = from.path_version;
    std::size_t size = from.bytes.size();
    if (!from.json_size.empty()) {
      if (!read_number(from.json_size, &size) || size > from.bytes.size()) {
        return invalid(std::string(kJsonSize) + " must be the size of the JSON at the start of the body");
      }
      if (size == 0) {
        bare_ = from.bytes;
        all_binary_ = true;
        return {};
      }
    }
    Fields in(from.bytes.substr(0, size));
    std::string_view binary = from.bytes.substr(size);
    if (in.text("id", request_.mutable_id()).fault()) return in.fault();
    if (auto fault = read_parameters(in, request_.mutable_parameters())) return fault;
    if (auto fault = take_flag("binary_data_output", request_.mutable_parameters(), &all_binary_)) return fault;
    const json* inputs = in.find("inputs");
    if (inputs == nullptr || !inputs->is_array() || inputs->empty()) {
      return invalid("inputs must be a list of tensors, and not empty");
    }
    if (inputs->size() > kMostTensors) return invalid("there are too many inputs");
    for (const auto& input : *inputs) {
      if (auto fault = read_input(input, &binary)) return fault;
    }
    if (!binary.empty()) return invalid("there is more binary data than the inputs say");
    const json* outputs = in.given("outputs");
    if (outputs == nullptr) return {};
    if (!outputs->is_array()) return invalid("outputs must be a list");
    if (outputs->size() > kMostTensors) return invalid("there are too many outputs");
    for (const auto& output : *outputs) {
      if (auto fault = read_output(output)) return fault;
    }
    return {};
  }

  MaybeFault ask(const ModelSpec& model, std::size_t, inference::ModelInferRequest* out) override {
    if (bare_) {
      if (!model.takes_text()) {
        return invalid(std::string(kJsonSize) + ": 0: a body without JSON is a text, and model '" + model.name +
                       "' takes tensors");
      }
      if (auto fault = add_texts(kText, {}, {*bare_}, &request_)) return fault;
    }
    request_.set_model_name(model.name);
    request_.set_model_version(version_);
    out->Swap(&request_);
    return {};
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, HttpAnswer* out) override {
    json said = {{"model_name", answer.model_name()}, {"model_version", answer.model_version()}};
    if (!answer.id().empty()) said["id"] = answer.id();
    json parameters = json::object();
    for (const auto& [key, value] : answer.parameters()) {
      if (value.has_int64_param()) parameters[key] = value.int64_param();
      if (value.has_string_param()) parameters[key] = value.string_param();
      if (value.has_bool_param()) parameters[key] = value.bool_param();
      if (value.has_double_param()) parameters[key] = value.double_param();
    }
    if (!parameters.empty()) said["parameters"] = std::move(parameters);
    if (answer.outputs_size() != answer.raw_output_contents_size()) {
      return Fault{Code::kInternal, "the worker's answer has not as many tensors as outputs"};
    }
    std::string binary;
    auto tensors = json::array();
    for (int i = 0; i < answer.outputs_size(); ++i) {
      const auto& output = answer.outputs(i);
      const auto& raw = answer.raw_output_contents(i);
      auto shape = json::array();
      for (const auto dim : output.shape()) shape.push_back(dim);
      json tensor = {{"name", output.name()}, {"datatype", output.datatype()}, {"shape", std::move(shape)}};
      const auto wished = binary_.find(output.name());
      if (wished != binary_.end() ? wished->second : all_binary_) {
        tensor["parameters"] = {{kBinarySize, raw.size()}};
        binary += raw;
      } else if (auto fault = write_data(output.datatype(), raw, output.shape_size() > 0 ? output.shape(0) : 1,
                                         &tensor["data"])) {
        return fault;
      }
      tensors.push_back(std::move(tensor));
    }
    said["outputs"] = std::move(tensors);
    out->body = dumped(said);
    if (binary.empty()) return {};
    out->headers = std::string(kJsonSize) + ": " + std::to_string(out->body.size()) + "\r\n";
    out->type = "application/octet-stream";
    out->body += binary;
    return {};
  }

 private:
  MaybeFault read_input(const json& from, std::string_view* binary) {
    if (!from.is_object()) return invalid("inputs: a tensor is an object");
    Fields in(from);
    auto* tensor = request_.add_inputs();
    if (in.text("name", tensor->mutable_name()).text("datatype", tensor->mutable_datatype()).fault()) return in.fault();
    const std::string what = "input " + arlo::quoted(tensor->name());
    const json* shape = in.find("shape");
    if (shape == nullptr || !shape->is_array() || shape->size() > 8) return invalid(what + " needs a shape");
    for (const auto& dim : *shape) {
      if (!whole(dim)) return invalid(what + ": its shape has something else than whole numbers");
      tensor->add_shape(dim.get<std::int64_t>());
    }
    if (auto fault = read_parameters(in, tensor->mutable_parameters())) return fault;
    std::string raw;
    auto& parameters = *tensor->mutable_parameters();
    if (const auto found = parameters.find(kBinarySize); found != parameters.end()) {
      if (!found->second.has_int64_param()) {
        return invalid(what + ": " + kBinarySize + " must be a whole number of bytes");
      }
      const auto size = found->second.int64_param();
      if (size < 0 || static_cast<std::uint64_t>(size) > binary->size()) {
        return invalid(what + ": " + kBinarySize + " says more bytes than there are");
      }
      raw = binary->substr(0, static_cast<std::size_t>(size));
      binary->remove_prefix(static_cast<std::size_t>(size));
      parameters.erase(found);
    } else {
      const json* data = in.find("data");
      if (data == nullptr) return invalid(what + " has neither data nor " + kBinarySize);
      if (auto fault = append_data(*data, tensor->datatype(), what, &raw)) return fault;
    }
    request_.add_raw_input_contents(std::move(raw));
    return {};
  }

  MaybeFault read_output(const json& from) {
    if (!from.is_object()) return invalid("outputs: an output is an object");
    Fields in(from);
    auto* output = request_.add_outputs();
    if (in.text("name", output->mutable_name()).fault()) return in.fault();
    if (auto fault = read_parameters(in, output->mutable_parameters())) return fault;
    bool binary = false;
    bool given = false;
    if (auto fault = take_flag("binary_data", output->mutable_parameters(), &binary, &given)) return fault;
    if (given) binary_[output->name()] = binary;
    return {};
  }

  inference::ModelInferRequest request_;
  std::unordered_map<std::string, bool> binary_;  // per output: whether the client asked for binary data
  bool all_binary_ = false;
  std::optional<std::string> bare_;  // the raw body without JSON
};

// Converts texts to numbers, because protobuf's JSON writes 64-bit numbers as texts.
void numbers_for_texts(json* value) {
  static constexpr std::string_view kNumbers[] = {"shape",           "dims",          "count", "ns", "inference_count",
                                                  "execution_count", "last_inference"};
  const auto number = [](json* from) {
    std::int64_t found = 0;
    if (from->is_string() && read_number(from->get_ref<const std::string&>(), &found)) *from = found;
  };
  if (value->is_array()) {
    for (auto& each : *value) numbers_for_texts(&each);
  }
  if (!value->is_object()) return;
  for (auto& [key, each] : value->items()) {
    if (std::find(std::begin(kNumbers), std::end(kNumbers), key) == std::end(kNumbers)) {
      numbers_for_texts(&each);
    } else if (each.is_array()) {
      for (auto& one : each) number(&one);
    } else {
      number(&each);
    }
  }
}

}  // namespace

std::unique_ptr<ApiTask> make_kserve_infer() { return std::make_unique<Infer>(); }

std::string written(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  auto value = json::parse(text, nullptr, false);
  numbers_for_texts(&value);
  return dumped(value);
}

}  // namespace arlo::gateway
