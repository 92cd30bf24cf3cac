#include "gateway_fixture.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "base/wire.h"

namespace arlo::gateway::fixture {
namespace {

v1::Model parse_model(const std::string& text) {
  v1::Model model;
  if (!google::protobuf::TextFormat::ParseFromString(text, &model)) throw std::logic_error("no model: " + text);
  return model;
}

// Ids and mask may differ in width of element; an input without a default; outputs of 8 bytes, of one, of none.
constexpr std::array<const char*, kModels> kModelTexts = {
    R"(name: "encoder" slo_ms: 100 default_timeout_ms: 2000 vocabulary: 30522
       inputs { name: "input_ids" datatype: "INT64" role: ROLE_IDS pad_value: 5 }
       inputs { name: "attention_mask" datatype: "INT64" role: ROLE_MASK }
       inputs { name: "token_type_ids" datatype: "INT64" role: ROLE_OTHER pad_value: 7 optional: true }
       outputs { name: "hidden" datatype: "FP32" token_level: true dims: 2 }
       outputs { name: "pooled" datatype: "FP32" dims: 3 }
       outputs { name: "label" datatype: "BYTES" dims: 1 })",
    R"(name: "bare" slo_ms: 100 default_timeout_ms: 2000
       inputs { name: "ids" datatype: "INT32" role: ROLE_IDS }
       outputs { name: "tags" datatype: "INT64" token_level: true })",
    R"(name: "mixed" slo_ms: 100 default_timeout_ms: 2000
       inputs { name: "position" datatype: "INT32" role: ROLE_OTHER pad_value: -1 }
       inputs { name: "mask" datatype: "INT32" role: ROLE_MASK }
       inputs { name: "ids" datatype: "INT64" role: ROLE_IDS pad_value: -9223372036854775808 }
       outputs { name: "score" datatype: "FP16" dims: -1 }
       outputs { name: "hidden" datatype: "UINT8" token_level: true dims: -1 dims: 2 })",
    R"(name: "labels" slo_ms: 100 default_timeout_ms: 2000
       inputs { name: "ids" datatype: "INT64" role: ROLE_IDS }
       inputs { name: "mask" datatype: "INT64" role: ROLE_MASK }
       outputs { name: "labels" datatype: "BYTES" dims: -1 })",
};

constexpr std::int32_t kWidest = 40;  // of a request; up to 32 of it are tokens

std::string random_text(Random& random) {
  static const std::vector<std::string> pieces = {
      "a", "0", " ", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", std::string(1, '\0'), "token", "\xf4\x8f\xbf\xbf"};
  std::string text;
  for (std::uint64_t i = below(random, 12); i > 0; --i) text += pieces[below(random, pieces.size())];
  return text;
}

void random_parameter(Random& random, inference::InferParameter* value) {
  switch (below(random, 6)) {
    case 0:
      value->set_bool_param(chance(random, 50));
      break;
    case 1:
      value->set_int64_param(static_cast<std::int64_t>(random()));
      break;
    case 2:
      value->set_string_param(random_text(random));
      break;
    case 3:
      value->set_double_param(static_cast<double>(random()) / 3);
      break;
    case 4:
      value->set_uint64_param(random());
      break;
    default:
      break;  // nothing set
  }
}

std::int64_t fit(std::int64_t value, std::size_t item) {
  return item == 4 ? static_cast<std::int32_t>(static_cast<std::uint32_t>(value)) : value;
}

std::int64_t random_value(Random& random, std::size_t item) {
  const auto value = static_cast<std::int64_t>(chance(random, 70) ? below(random, 30'000) : random());
  return fit(value, item);
}

void put(inference::ModelInferRequest* request, const InputSpec& spec, std::int64_t rows, std::int64_t width,
         const std::vector<std::int64_t>& values, bool raw) {
  auto* input = request->add_inputs();
  input->set_name(spec.name);
  input->set_datatype(spec.datatype);
  input->add_shape(rows);
  input->add_shape(width);
  if (raw) {
    request->add_raw_input_contents(spec.item == 8 ? raw64(values) : raw32(values));
  } else if (spec.item == 8) {
    *input->mutable_contents()->mutable_int64_contents() = {values.begin(), values.end()};
  } else {
    *input->mutable_contents()->mutable_int_contents() = {values.begin(), values.end()};
  }
}

void append_varint(std::string* out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void append_bytes(std::string* out, unsigned field, const std::string& bytes) {
  append_varint(out, field << 3 | wire::kBytes);
  append_varint(out, bytes.size());
  *out += bytes;
}

template <typename Values>
void append_each(std::string* out, unsigned field, const Values& values) {
  for (const auto value : values) {
    append_varint(out, field << 3 | wire::kVarint);
    append_varint(out, static_cast<std::uint64_t>(std::int64_t{value}));
  }
}

}  // namespace

v1::Deployment deployment() {
  v1::Deployment out;
  out.set_version(1);
  *out.mutable_model() = parse_model(kModelTexts[0]);
  for (const auto& info : runtimes()) {
    auto* runtime = out.add_runtimes();
    runtime->set_name(info.name);
    runtime->set_max_length(static_cast<std::uint32_t>(info.max_length));
    runtime->set_max_batch(1);
    runtime->set_dynamic(info.dynamic);
    runtime->set_capacity(10);
    auto* point = runtime->add_latency();
    point->set_length(static_cast<std::uint32_t>(info.max_length));
    point->set_batch(1);
    point->set_latency_us(1000);
    auto* instance = out.add_instances();
    instance->set_id("instance-of-" + info.name);
    instance->set_endpoint("127.0.0.1:1");
    instance->set_runtime(info.name);
    instance->set_inflight_limit(2);
  }
  return out;
}

std::shared_ptr<const ModelSpec> model(unsigned index) {
  v1::Deployment from = deployment();
  *from.mutable_model() = parse_model(kModelTexts.at(index));
  if (auto fault = check_deployment(from)) throw std::logic_error(fault->message);
  return make_model(from, from.model(), 0);
}

const std::vector<RuntimeInfo>& runtimes() {
  static const std::vector<RuntimeInfo> all = {{"encoder_8", 8, 1, false},
                                               {"encoder_16", 16, 1, false},
                                               {"encoder_32", 32, 1, false},
                                               {"encoder_any", 32, 1, true}};
  return all;
}

std::string raw64(const std::vector<std::int64_t>& values) {
  std::string out;
  for (const auto value : values) {
    for (int k = 0; k < 8; ++k) out.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * k)));
  }
  return out;
}

std::string raw32(const std::vector<std::int64_t>& values) {
  std::string out;
  for (const auto value : values) {
    for (int k = 0; k < 4; ++k) out.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * k)));
  }
  return out;
}

inference::ModelInferRequest random_request(Random& random, const ModelSpec& model) {
  inference::ModelInferRequest request;
  request.set_model_name(model.name);
  if (chance(random, 30)) request.set_model_version("1");
  if (chance(random, 70)) request.set_id(random_text(random));
  for (std::uint64_t i = below(random, 4); i > 0; --i) {
    random_parameter(random, &(*request.mutable_parameters())["p" + random_text(random)]);
  }
  auto& parameters = *request.mutable_parameters();
  if (chance(random, 20)) parameters["timeout"].set_int64_param(static_cast<std::int64_t>(below(random, 1U << 30)));
  if (chance(random, 20)) parameters["arlo_class"].set_string_param(chance(random, 50) ? "bulk" : "interactive");
  if (chance(random, 20)) parameters["priority"].set_uint64_param(1);
  if (chance(random, 20)) parameters["sequence_id"].set_int64_param(0);
  if (chance(random, 20)) parameters["triton_enable_empty_final_response"].set_bool_param(chance(random, 50));

  const auto rows = static_cast<std::int64_t>(1 + below(random, 5));
  const bool masked = model.mask >= 0 && chance(random, 70);
  const auto width = static_cast<std::int64_t>(1 + below(random, masked ? kWidest : 32));
  const bool raw = chance(random, 60);
  std::vector<const InputSpec*> order;
  for (const auto& spec : model.inputs) {
    if (spec.role == Role::kMask ? masked : (!spec.optional || chance(random, 50))) order.push_back(&spec);
  }
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(random, i)]);
  for (const auto* spec : order) {
    std::vector<std::int64_t> values;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t length =
          1 + static_cast<std::int64_t>(below(random, static_cast<std::uint64_t>(std::min(width, std::int64_t{32}))));
      for (std::int64_t i = 0; i < width; ++i) {
        if (spec->role == Role::kIds) {
          values.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(model.vocabulary)));
        } else if (spec->role != Role::kMask) {
          values.push_back(random_value(random, spec->item));
        } else if (i + 1 == length) {
          values.push_back(chance(random, 90) ? 1 : std::int64_t{1} << (spec->item == 8 ? 32 : 30));  // low bytes all 0
        } else {
          values.push_back(i < length && chance(random, 90) ? 1 : 0);
        }
      }
    }
    put(&request, *spec, rows, width, values, raw);
  }
  for (const auto& spec : model.outputs) {
    if (chance(random, 30)) request.add_outputs()->set_name(spec.name);
  }
  if (request.outputs_size() > 1 && chance(random, 50)) request.mutable_outputs()->SwapElements(0, 1);
  return request;
}

inference::ModelInferResponse random_answer(Random& random, const ModelSpec& model, std::int32_t padded,
                                            std::int64_t open_dim) {
  inference::ModelInferResponse answer;
  answer.set_model_name("whatever the runtime is called");
  answer.set_id("and its id");
  std::vector<const OutputSpec*> order;
  for (const auto& spec : model.outputs) order.push_back(&spec);
  std::reverse(order.begin(), order.end());
  for (const auto* spec : order) {
    auto* output = answer.add_outputs();
    output->set_name(spec->name);
    output->set_datatype(spec->datatype);
    output->add_shape(1);
    if (spec->token_level) output->add_shape(padded);
    std::size_t elements = spec->token_level ? static_cast<std::size_t>(padded) : 1;
    for (const auto dim : spec->dims) {
      output->add_shape(dim < 0 ? open_dim : dim);
      elements *= static_cast<std::size_t>(dim < 0 ? open_dim : dim);
    }
    std::string raw;
    for (std::size_t i = 0; i < elements; ++i) {
      if (spec->item == 0) {
        const std::string text = random_text(random);
        raw += raw32({static_cast<std::int64_t>(text.size())}) + text;
      } else {
        for (std::size_t k = 0; k < spec->item; ++k) raw.push_back(static_cast<char>(random()));
      }
    }
    answer.add_raw_output_contents(raw);
  }
  return answer;
}

std::string serialize_unpacked(const inference::ModelInferRequest& request) {
  auto rest = request;
  rest.clear_inputs();
  std::string body = rest.SerializeAsString();
  for (const auto& input : request.inputs()) {
    auto bare = input;
    bare.clear_shape();
    bare.clear_contents();
    std::string tensor = bare.SerializeAsString();
    append_each(&tensor, 3, input.shape());
    if (input.has_contents()) {
      std::string contents;
      append_each(&contents, 2, input.contents().int_contents());
      append_each(&contents, 3, input.contents().int64_contents());
      append_bytes(&tensor, 5, contents);
    }
    append_bytes(&body, 5, tensor);
  }
  return body;
}

std::string mutated(Random& random, std::string body) {
  for (std::uint64_t i = 1 + below(random, 3); i > 0 && !body.empty(); --i) {
    const std::size_t at = below(random, body.size());
    const std::size_t size = std::min<std::size_t>(1 + below(random, 8), body.size() - at);
    switch (below(random, 5)) {
      case 0:
        body[at] = static_cast<char>(random());
        break;
      case 1:
        body[at] = static_cast<char>(body[at] ^ (1 << below(random, 8)));
        break;
      case 2:
        body.erase(at, size);
        break;
      case 3:
        body.insert(at, body.substr(below(random, body.size()), size));
        break;
      default:
        body.insert(at, 1, static_cast<char>(random()));
        break;
    }
  }
  return body;
}

}  // namespace arlo::gateway::fixture
