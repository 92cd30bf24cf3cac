// Every request that is refused: with which code, and in which words.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway_fixture.h"
#include "gateway_reference.h"
#include "rewrite/request.h"

namespace arlo::gateway {
namespace {

using inference::ModelInferRequest;

constexpr RequestLimits kLimits{.max_rows = 4};

// Two rows of 3 tokens with every input; runs as it is.
ModelInferRequest sound() {
  ModelInferRequest request;
  request.set_model_name("encoder");
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids"}) {
    auto* input = request.add_inputs();
    input->set_name(name);
    input->set_datatype("INT64");
    input->add_shape(2);
    input->add_shape(3);
    request.add_raw_input_contents(fixture::raw64({1, 1, 1, 1, 1, 1}));
  }
  return request;
}

ModelInferRequest sound_typed() {
  ModelInferRequest request = sound();
  request.clear_raw_input_contents();
  for (auto& input : *request.mutable_inputs()) {
    for (int i = 0; i < 6; ++i) input.mutable_contents()->add_int64_contents(1);
  }
  return request;
}

MaybeFault fault_of(const std::string& body, const ModelSpec& model) {
  InferRequest request;
  if (auto fault = request.parse(body)) return fault;
  return request.bind(model, kLimits);
}

void reshape(ModelInferRequest& request, std::vector<std::int64_t> shape) {
  std::size_t elements = 1;
  for (const auto dim : shape) elements *= static_cast<std::size_t>(dim);
  for (auto& input : *request.mutable_inputs()) *input.mutable_shape() = {shape.begin(), shape.end()};
  for (auto& raw : *request.mutable_raw_input_contents()) raw = fixture::raw64(std::vector<std::int64_t>(elements, 1));
}

struct Refusal {
  std::string name;
  std::function<void(ModelInferRequest&)> damage;
  std::string message;
  Code code = Code::kInvalidArgument;
};

void expect_refused(const Refusal& refusal, ModelInferRequest request) {
  refusal.damage(request);
  const auto model = fixture::model(0);
  const auto fault = fault_of(request.SerializeAsString(), *model);
  ASSERT_TRUE(fault.has_value()) << refusal.name;
  EXPECT_EQ(fault->message, refusal.message) << refusal.name;
  EXPECT_EQ(fault->code, refusal.code) << refusal.name;
  if (refusal.code == Code::kInvalidArgument) {
    EXPECT_FALSE(reference::lengths(request, *model, kLimits).has_value())
        << refusal.name << ": the reference takes it";
  }
}

auto parameter(const char* key, const std::function<void(inference::InferParameter&)>& set) {
  return [=](ModelInferRequest& request) { set((*request.mutable_parameters())[key]); };
}

TEST(Refused, NothingOfASoundRequest) {
  const auto model = fixture::model(0);
  for (const auto& request : {sound(), sound_typed()}) {
    const auto fault = fault_of(request.SerializeAsString(), *model);
    EXPECT_FALSE(fault.has_value()) << fault->message;
  }
}

TEST(Refused, Lengths) {
  const std::string takes = "; model 'encoder' takes 1 to 32 tokens (truncate on the client if that is what you want)";
  const std::vector<Refusal> refusals = {
      {"a row without tokens", [](auto& r) { r.set_raw_input_contents(1, fixture::raw64({1, 0, 0, 0, 0, 0})); },
       "row 1 has length 0" + takes},
      {"no mask, width 0",
       [](auto& r) {
         r.mutable_inputs()->DeleteSubrange(1, 2);
         r.mutable_raw_input_contents()->DeleteSubrange(1, 2);
         reshape(r, {2, 0});
       },
       "row 0 has length 0" + takes},
      {"width 0", [](auto& r) { reshape(r, {1, 0}); }, "row 0 has length 0" + takes},
      {"one too long", [](auto& r) { reshape(r, {2, 33}); }, "row 0 has length 33" + takes},
      {"the second too long",
       [](auto& r) {
         reshape(r, {2, 40});
         std::vector<std::int64_t> mask(80, 0);
         mask[31] = mask[79] = 1;
         r.set_raw_input_contents(1, fixture::raw64(mask));
       },
       "row 1 has length 40" + takes},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());
}

TEST(Refused, Shapes) {
  const std::vector<Refusal> refusals = {
      {"rank 1", [](auto& r) { reshape(r, {6}); }, "input 'input_ids' has 1 dimensions; 2 are needed: [rows, tokens]"},
      {"rank 0", [](auto& r) { reshape(r, {}); }, "input 'input_ids' has 0 dimensions; 2 are needed: [rows, tokens]"},
      {"rank 3", [](auto& r) { reshape(r, {1, 2, 3}); },
       "input 'input_ids' has 3 dimensions; 2 are needed: [rows, tokens]"},
      {"no rows", [](auto& r) { reshape(r, {0, 3}); }, "input 'input_ids' has 0 rows; at least 1 is needed"},
      {"negative rows", [](auto& r) { r.mutable_inputs(0)->set_shape(0, -1); },
       "input 'input_ids' has -1 rows; at least 1 is needed"},
      {"too many rows", [](auto& r) { reshape(r, {5, 3}); },
       "input 'input_ids' has 5 rows; at most 4 are taken in one request"},
      {"negative width", [](auto& r) { r.mutable_inputs(0)->set_shape(1, -3); },
       "input 'input_ids' has an impossible width of -3 tokens"},
      {"a width whose bytes overflow", [](auto& r) { r.mutable_inputs(0)->set_shape(1, std::int64_t{1} << 61); },
       "input 'input_ids' has an impossible width of 2305843009213693952 tokens"},
      {"another width", [](auto& r) { r.mutable_inputs(1)->set_shape(1, 4); },
       "input 'attention_mask' has shape [2, 4]; [2, 3] is needed, as of 'input_ids'"},
      {"another row count", [](auto& r) { r.mutable_inputs(2)->set_shape(0, 1); },
       "input 'token_type_ids' has shape [1, 3]; [2, 3] is needed, as of 'input_ids'"},
      {"mask of rank 3", [](auto& r) { r.mutable_inputs(1)->add_shape(1); },
       "input 'attention_mask' has shape [2, 3, 1]; [2, 3] is needed, as of 'input_ids'"},
      {"mask of rank 1", [](auto& r) { r.mutable_inputs(1)->mutable_shape()->RemoveLast(); },
       "input 'attention_mask' has shape [2]; [2, 3] is needed, as of 'input_ids'"},
      {"mask without a shape", [](auto& r) { r.mutable_inputs(1)->clear_shape(); },
       "input 'attention_mask' has shape []; [2, 3] is needed, as of 'input_ids'"},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());
}

TEST(Refused, Inputs) {
  const std::vector<Refusal> refusals = {
      {"no inputs",
       [](auto& r) {
         r.clear_inputs();
         r.clear_raw_input_contents();
       },
       "input 'input_ids' of model 'encoder' is missing"},
      {"no ids",
       [](auto& r) {
         r.mutable_inputs()->DeleteSubrange(0, 1);
         r.mutable_raw_input_contents()->DeleteSubrange(0, 1);
       },
       "input 'input_ids' of model 'encoder' is missing"},
      {"unknown input", [](auto& r) { r.mutable_inputs(2)->set_name("extra\n"); },
       "unknown input 'extra?' of model 'encoder'"},
      {"a long unknown name", [](auto& r) { r.mutable_inputs(2)->set_name(std::string(200, 'x')); },
       "unknown input '" + std::string(80, 'x') + "...' of model 'encoder'"},
      {"an unknown name of another script", [](auto& r) { r.mutable_inputs(2)->set_name("\xc3\xa9\x7f"); },
       "unknown input '\?\?\?' of model 'encoder'"},
      {"twice", [](auto& r) { r.mutable_inputs(2)->set_name("attention_mask"); },
       "input 'attention_mask' is given twice"},
      {"ids twice", [](auto& r) { r.mutable_inputs(1)->set_name("input_ids"); }, "input 'input_ids' is given twice"},
      {"another datatype", [](auto& r) { r.mutable_inputs(0)->set_datatype("INT32"); },
       "input 'input_ids' has datatype 'INT32'; INT64 is needed"},
      {"no datatype", [](auto& r) { r.mutable_inputs(1)->clear_datatype(); },
       "input 'attention_mask' has datatype ''; INT64 is needed"},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());

  const auto mixed = fixture::model(2);  // its input `position` has no default
  auto request = sound();
  request.mutable_inputs()->DeleteSubrange(1, 2);
  request.mutable_raw_input_contents()->DeleteSubrange(1, 2);
  request.mutable_inputs(0)->set_name("ids");
  const auto fault = fault_of(request.SerializeAsString(), *mixed);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->message, "input 'position' of model 'mixed' is missing");
}

TEST(Refused, RawContents) {
  const std::vector<Refusal> refusals = {
      {"too few entries", [](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); },
       "raw_input_contents has 2 entries for 3 inputs; one each is needed"},
      {"too many entries", [](auto& r) { r.add_raw_input_contents(""); },
       "raw_input_contents has 4 entries for 3 inputs; one each is needed"},
      {"mixed with typed", [](auto& r) { r.mutable_inputs(1)->mutable_contents()->add_int64_contents(1); },
       "raw_input_contents and typed contents are mixed: use one of them"},
      {"too short", [](auto& r) { r.mutable_raw_input_contents(1)->pop_back(); },
       "input 'attention_mask' carries 47 bytes; its shape and datatype need 48"},
      {"too long", [](auto& r) { r.mutable_raw_input_contents(2)->push_back('x'); },
       "input 'token_type_ids' carries 49 bytes; its shape and datatype need 48"},
      {"empty", [](auto& r) { r.set_raw_input_contents(0, ""); },
       "input 'input_ids' carries 0 bytes; its shape and datatype need 48"},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());
}

TEST(Refused, TypedContents) {
  const std::vector<Refusal> refusals = {
      {"one too few, as far as bytes tell",
       [](auto& r) { r.mutable_inputs(1)->mutable_contents()->mutable_int64_contents()->RemoveLast(); },
       "input 'attention_mask' carries 5 elements; its shape needs 6"},
      {"far too few", [](auto& r) { reshape(r, {4, 32}); },
       "input 'input_ids' carries fewer elements than the 128 that its shape needs"},
      {"one too many", [](auto& r) { r.mutable_inputs(1)->mutable_contents()->add_int64_contents(1); },
       "input 'attention_mask' carries 7 elements; its shape needs 6"},
      {"none", [](auto& r) { r.mutable_inputs(2)->clear_contents(); },
       "input 'token_type_ids' carries fewer elements than the 6 that its shape needs"},
      {"of another type",
       [](auto& r) {
         auto* contents = r.mutable_inputs(0)->mutable_contents();
         contents->clear_int64_contents();
         for (int i = 0; i < 6; ++i) contents->add_int_contents(1);
       },
       "input 'input_ids' of datatype INT64 must use int64_contents"},
      {"of two types", [](auto& r) { r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1); },
       "input 'input_ids' of datatype INT64 must use int64_contents"},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound_typed());

  auto request = sound_typed();
  request.mutable_inputs()->DeleteSubrange(1, 2);
  request.mutable_inputs(0)->set_name("ids");
  request.mutable_inputs(0)->set_datatype("INT32");
  const auto fault = fault_of(request.SerializeAsString(), *fixture::model(1));
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->message, "input 'ids' of datatype INT32 must use int_contents");
}

TEST(Refused, Outputs) {
  const std::vector<Refusal> refusals = {
      {"unknown", [](auto& r) { r.add_outputs()->set_name("logits"); }, "unknown output 'logits' of model 'encoder'"},
      {"without a name", [](auto& r) { r.add_outputs(); }, "unknown output '' of model 'encoder'"},
      {"twice",
       [](auto& r) {
         for (const char* name : {"pooled", "hidden", "pooled"}) r.add_outputs()->set_name(name);
       },
       "output 'pooled' is asked for twice"},
      {"classification",
       [](auto& r) {
         auto* output = r.add_outputs();
         output->set_name("pooled");
         (*output->mutable_parameters())["classification"].set_int64_param(3);
       },
       "output 'pooled' asks for classification, which the gateway does not do: take the tensor", Code::kUnimplemented},
      {"shared memory",
       [](auto& r) {
         auto* output = r.add_outputs();
         output->set_name("pooled");
         (*output->mutable_parameters())["shared_memory_region"].set_string_param("region");
       },
       "output 'pooled' asks for shared memory, which the gateway cannot reach", Code::kUnimplemented},
      {"shared memory of an input",
       [](auto& r) { (*r.mutable_inputs(1)->mutable_parameters())["shared_memory_byte_size"].set_int64_param(48); },
       "input 'attention_mask' uses shared memory, which the gateway cannot reach: send the tensor in the request",
       Code::kUnimplemented},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());
}

TEST(Refused, Parameters) {
  const std::string timeout = "parameter timeout must be an int64_param of microseconds, 0 or more";
  const std::string sequence =
      "sequence_id is set: rows go to different instances, so sequences cannot be served; leave it 0";
  const std::vector<Refusal> refusals = {
      {"sequence", parameter("sequence_id", [](auto& p) { p.set_int64_param(7); }), sequence},
      {"unsigned sequence", parameter("sequence_id", [](auto& p) { p.set_uint64_param(7); }), sequence},
      {"named sequence", parameter("sequence_id", [](auto& p) { p.set_string_param("a"); }), sequence},
      {"text timeout", parameter("timeout", [](auto& p) { p.set_string_param("1"); }), timeout},
      {"unsigned timeout", parameter("timeout", [](auto& p) { p.set_uint64_param(1); }), timeout},
      {"double timeout", parameter("timeout", [](auto& p) { p.set_double_param(1); }), timeout},
      {"bool timeout", parameter("timeout", [](auto& p) { p.set_bool_param(true); }), timeout},
      {"timeout without a value", parameter("timeout", [](auto&) {}), timeout},
      {"negative timeout", parameter("timeout", [](auto& p) { p.set_int64_param(-1); }), timeout},
      {"a reserved name", parameter("triton_final_response", [](auto& p) { p.set_bool_param(true); }),
       "parameter 'triton_final_response': names that start with triton_ are reserved by Triton"},
      {"a class that there is not", parameter("arlo_class", [](auto& p) { p.set_string_param("best"); }),
       "parameter arlo_class must be a string_param: interactive or bulk"},
      {"an id of 4097 bytes", [](auto& r) { r.set_id(std::string(4097, 'i')); },
       "id has 4097 bytes; at most 4096 are taken"},
  };
  for (const auto& refusal : refusals) expect_refused(refusal, sound());
}

TEST(Refused, ButNotWhatHasNoEffect) {
  const auto model = fixture::model(0);
  const std::vector<std::function<void(ModelInferRequest&)>> changes = {
      parameter("sequence_id", [](auto& p) { p.set_int64_param(0); }),
      parameter("sequence_id", [](auto& p) { p.set_string_param(""); }),
      parameter("sequence_start", [](auto& p) { p.set_bool_param(true); }),
      parameter("sequence_end", [](auto& p) { p.set_bool_param(true); }),
      parameter("priority", [](auto& p) { p.set_uint64_param(1); }),
      parameter("timeout", [](auto& p) { p.set_int64_param(0); }),
      parameter("triton_enable_empty_final_response", [](auto& p) { p.set_bool_param(false); }),
      [](auto& r) { r.set_id(std::string(4096, 'i')); },
      [](auto& r) {
        auto* output = r.add_outputs();
        output->set_name("pooled");
        (*output->mutable_parameters())["classification"].set_int64_param(0);
        (*output->mutable_parameters())["binary_data"].set_bool_param(true);
      },
      [](auto& r) { (*r.mutable_inputs(0)->mutable_parameters())["hint"].set_string_param("x"); },
      [](auto& r) { r.mutable_inputs(0)->mutable_contents(); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    auto message = sound();
    changes[i](message);
    const std::string body = message.SerializeAsString();
    InferRequest request;
    auto fault = request.parse(body);
    if (!fault) fault = request.bind(*model, kLimits);
    ASSERT_FALSE(fault.has_value()) << i << ": " << fault->message;
    const WorkerRequest::Row row{&request, 0, request.outputs()};
    const auto& runtime = fixture::runtimes()[0];
    const WorkerRequest worker({&row, 1}, runtime, WorkerRequest::tokens(request.lengths()[0], runtime));
    std::string out(worker.size(), '\0');
    worker.write(out.data());
    ModelInferRequest sent;
    ASSERT_TRUE(sent.ParseFromString(out));
    EXPECT_EQ(sent.parameters_size(), 0) << i << ": sent on";
    EXPECT_FALSE(request.wants_final_response());
  }
}

// Only the wire format can say these; protobuf's classes cannot.
TEST(Refused, MalformedMessages) {
  using namespace std::string_literals;
  const std::string malformed = "malformed ModelInferRequest: ";
  const std::string parameter_text = " does not parse or is not UTF-8";
  const std::string good = sound().SerializeAsString();
  const std::string input = sound().inputs(0).SerializeAsString();
  auto field = [](char tag, const std::string& bytes) {
    return tag + std::string(1, static_cast<char>(bytes.size())) + bytes;
  };
  struct Case {
    std::string name, body, message;
  };
  const std::vector<Case> cases = {
      {"random bytes", "\xff\xff\xff\xff\xff", malformed + "the message does not parse"},
      {"cut", good.substr(0, good.size() - 1), malformed + "the message does not parse"},
      {"a group", "\x5b\x5c"s, malformed + "the message does not parse"},
      {"a number as name", "\x08\x01", malformed + "a field does not parse"},
      {"a fixed64 as raw", "\x39"s + "12345678", malformed + "a field does not parse"},
      {"cut input", field('\x2a', "\x0a\x05x"), malformed + "an input does not parse"},
      {"number as an input's name", field('\x2a', "\x08\x01"), malformed + "an input does not parse"},
      {"fixed32 as a shape", field('\x2a', "\x1d"s + "1234"), malformed + "an input does not parse"},
      {"cut shape", field('\x2a', "\x1a\x01\x80"), malformed + "an input's shape does not parse"},
      {"contents twice", field('\x2a', input + field('\x2a', "\x1a\x01\x01") + field('\x2a', "\x1a\x01\x01")),
       "input 'input_ids' has its contents twice"},
      {"cut output", field('\x32', "\x0a\x05x"), malformed + "an output does not parse"},
      {"cut parameter", field('\x22', "\x0a\x05x"), malformed + "a parameter" + parameter_text},
      {"cut parameter value", field('\x22', field('\x12', "\x10")), malformed + "a parameter" + parameter_text},
      {"cut input parameter", field('\x2a', field('\x22', "\x0a")),
       malformed + "an input's parameter" + parameter_text},
      {"cut output parameter", field('\x32', field('\x12', "\x0a")),
       malformed + "an output's parameter" + parameter_text},
      {"parameter name not UTF-8", field('\x22', field('\x0a', "\xff")), malformed + "a parameter" + parameter_text},
      {"parameter text not UTF-8", field('\x22', field('\x0a', "k") + field('\x12', field('\x1a', "\xff"))),
       malformed + "a parameter" + parameter_text},
      {"the first of two names not UTF-8", field('\x22', field('\x0a', "\xff") + field('\x0a', "k")),
       malformed + "a parameter" + parameter_text},
      {"timeout of the wrong wire type", field('\x22', field('\x0a', "timeout") + field('\x12', field('\x12', "1"))),
       "parameter timeout must be an int64_param of microseconds, 0 or more"},
      {"a sequence id behind which an empty value stands",
       field('\x22', field('\x0a', "sequence_id") + field('\x12', "\x10\x07") + field('\x12', "")),
       "sequence_id is set: rows go to different instances, so sequences cannot be served; leave it 0"},
      {"id not UTF-8", field('\x1a', "\xc3"), "id is not UTF-8"},
      {"typed contents cut", field('\x2a', input + field('\x2a', "\x1a\x08zzzzzzz\x80")),
       malformed + "typed contents does not parse"},
      {"typed contents malformed", field('\x2a', input + field('\x2a', "\x18\x01\x18\x01\x18\x01\x18")),
       malformed + "typed contents does not parse"},
  };
  for (const auto& c : cases) {
    const auto fault = fault_of(c.body, *fixture::model(0));
    ASSERT_TRUE(fault.has_value()) << c.name;
    EXPECT_EQ(fault->message, c.message) << c.name;
    EXPECT_EQ(fault->code, Code::kInvalidArgument) << c.name;
  }
}

TEST(Refused, IdsThatProtobufWouldRefuseAsText) {
  const google::protobuf::LogSilencer silencer;
  auto agrees = [](const std::string& id) {
    const std::string body = "\x1a" + std::string(1, static_cast<char>(id.size())) + id;
    return !InferRequest().parse(body) == ModelInferRequest().ParseFromString(body);
  };
  for (unsigned first = 0; first < 256; ++first) {
    const std::string one(1, static_cast<char>(first));
    ASSERT_TRUE(agrees(one)) << first;
    for (unsigned second = 0; second < 256; ++second) {
      const std::string two = one + static_cast<char>(second);
      ASSERT_TRUE(agrees(two)) << first << " " << second;
      for (const unsigned third : {0x00U, 0x41U, 0x7fU, 0x80U, 0x8fU, 0xbfU, 0xc0U, 0xffU}) {
        const std::string three = two + static_cast<char>(third);
        ASSERT_TRUE(agrees(three)) << first << " " << second << " " << third;
        for (const unsigned fourth : {0x41U, 0x80U, 0xbfU, 0xc2U}) {
          ASSERT_TRUE(agrees(three + static_cast<char>(fourth)))
              << first << " " << second << " " << third << " " << fourth;
        }
      }
    }
  }
}

}  // namespace
}  // namespace arlo::gateway
