// Deployments: what is refused, in which words, and what the data path reads out of a good one.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gateway_fixture.h"
#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

TEST(Datatypes, HaveTheSizesOfTheProtocol) {
  const std::vector<std::pair<const char*, int>> sizes = {
      {"BOOL", 1},    {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1}, {"INT16", 2},
      {"INT32", 4},   {"INT64", 8}, {"FP16", 2},   {"FP32", 4},   {"FP64", 8},   {"BF16", 2}, {"BYTES", 0},
      {"STRING", -1}, {"fp32", -1}, {"", -1},      {"FP3", -1},   {"FP322", -1}};
  for (const auto& [name, size] : sizes) EXPECT_EQ(datatype_size(name), size) << name;
}

TEST(Deployment, OfTheFixturesAreSound) {
  const auto fault = check_deployment(fixture::deployment());
  EXPECT_FALSE(fault.has_value()) << fault->message;
  auto without_instances = fixture::deployment();
  without_instances.clear_instances();
  EXPECT_FALSE(check_deployment(without_instances).has_value());
}

void bundle(v1::Deployment& deployment, const char* name, const std::vector<const char*>& runtimes) {
  auto* made = deployment.add_bundles();
  made->set_name(name);
  for (const char* runtime : runtimes) made->add_runtimes(runtime);
}

struct BadDeployment {
  std::function<void(v1::Deployment&)> damage;
  std::string message;
};

TEST(Deployment, FaultsNameTheField) {
  const std::string longest = std::to_string(1 << 20);
  const std::vector<BadDeployment> bad_deployments = {
      {[](auto& d) { d.set_version(0); }, "deployment.version must be above 0"},
      {[](auto& d) { d.clear_model(); }, "model.name is empty"},
      {[](auto& d) { d.mutable_model()->clear_name(); }, "model.name is empty"},
      {[](auto& d) { d.mutable_model()->set_slo_ms(0); }, "model.slo_ms must be above 0"},
      {[](auto& d) { d.mutable_model()->set_default_timeout_ms(0); }, "model.default_timeout_ms must be above 0"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(1)->set_name("input_ids"); },
       "model.inputs: name 'input_ids' is empty or given twice"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(1)->clear_name(); },
       "model.inputs: name '' is empty or given twice"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(0)->set_datatype("FP32"); },
       "model.inputs: 'input_ids' has datatype 'FP32'; token inputs are INT64 or INT32"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(2)->clear_role(); },
       "model.inputs: 'token_type_ids' has no role"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(2)->set_role(static_cast<v1::InputTensor::Role>(9)); },
       "model.inputs: 'token_type_ids' has no role"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(2)->set_role(v1::InputTensor::ROLE_IDS); },
       "model.inputs must have exactly one input of role ROLE_IDS, not 2"},
      {[](auto& d) { d.mutable_model()->clear_inputs(); },
       "model.inputs must have exactly one input of role ROLE_IDS, not 0"},
      {[](auto& d) { d.mutable_model()->mutable_inputs(2)->set_role(v1::InputTensor::ROLE_MASK); },
       "model.inputs must have at most one input of role ROLE_MASK"},
      {[](auto& d) {
         auto* input = d.mutable_model()->mutable_inputs(2);
         input->set_datatype("INT32");
         input->set_pad_value(std::int64_t{1} << 31);
       },
       "model.inputs: 'token_type_ids' has pad_value 2147483648, which does not fit INT32"},
      {[](auto& d) { d.mutable_model()->clear_outputs(); }, "model.outputs is empty"},
      {[](auto& d) {
         for (int i = 0; i < 62; ++i) *d.mutable_model()->add_outputs() = d.model().outputs(0);
       },
       "model.outputs has 65 outputs; at most 64 are taken"},
      {[](auto& d) { d.mutable_model()->mutable_outputs(1)->set_name("hidden"); },
       "model.outputs: name 'hidden' is empty or given twice"},
      {[](auto& d) { d.mutable_model()->mutable_outputs(1)->set_datatype("FLOAT"); },
       "model.outputs: 'pooled' has unknown datatype FLOAT"},
      {[](auto& d) { d.mutable_model()->mutable_outputs(2)->set_token_level(true); },
       "model.outputs: 'label' is token-level BYTES, which cannot be trimmed"},
      {[](auto& d) { d.clear_runtimes(); }, "deployment.runtimes is empty"},
      {[](auto& d) { d.mutable_runtimes(1)->set_name("encoder_8"); },
       "runtimes: name 'encoder_8' is empty or given twice"},
      {[](auto& d) { d.mutable_runtimes(0)->clear_name(); }, "runtimes: name '' is empty or given twice"},
      {[](auto& d) { d.mutable_runtimes(0)->set_max_length(0); },
       "runtimes: 'encoder_8' needs a max_length of 1 to " + longest},
      {[](auto& d) { d.mutable_runtimes(0)->set_max_length((1U << 20) + 1); },
       "runtimes: 'encoder_8' needs a max_length of 1 to " + longest},
      {[](auto& d) { d.mutable_runtimes(0)->set_max_batch(0); },
       "runtimes: 'encoder_8' needs a max_batch of 1 to 4096"},
      {[](auto& d) { d.mutable_runtimes(0)->set_max_batch(4097); },
       "runtimes: 'encoder_8' needs a max_batch of 1 to 4096"},
      {[](auto& d) { d.mutable_runtimes(0)->set_capacity(0); }, "runtimes: 'encoder_8' needs a capacity above 0"},
      {[](auto& d) { d.mutable_runtimes(0)->clear_latency(); },
       "runtimes: 'encoder_8' needs at least one latency point"},
      {[](auto& d) { d.mutable_runtimes(0)->mutable_latency(0)->set_length(0); },
       "runtimes: 'encoder_8' has a latency point of length or batch 0"},
      {[](auto& d) { d.mutable_runtimes(0)->mutable_latency(0)->set_batch(0); },
       "runtimes: 'encoder_8' has a latency point of length or batch 0"},
      {[](auto& d) { d.mutable_instances(0)->clear_id(); }, "instances: '' is empty or given twice"},
      {[](auto& d) { d.mutable_instances(1)->set_id("instance-of-encoder_8"); },
       "instances: 'instance-of-encoder_8' is empty or given twice"},
      {[](auto& d) { d.mutable_instances(0)->clear_endpoint(); }, "instances: 'instance-of-encoder_8' has no endpoint"},
      {[](auto& d) { d.mutable_instances(0)->set_runtime("encoder_9"); },
       "instances: 'instance-of-encoder_8' names unknown runtime 'encoder_9'"},
      {[](auto& d) { d.mutable_instances(0)->set_inflight_limit(0); },
       "instances: 'instance-of-encoder_8' needs an inflight_limit of 1 to 65536"},
      {[](auto& d) { d.mutable_instances(0)->set_inflight_limit(65537); },
       "instances: 'instance-of-encoder_8' needs an inflight_limit of 1 to 65536"},
      {[](auto& d) { d.add_bundles()->set_name("b"); }, "bundles: 'b' has no runtimes"},
      {[](auto& d) { bundle(d, "b", {"nothing"}); },
       "bundles: 'b' names runtime 'nothing', which is unknown or there twice"},
      {[](auto& d) { bundle(d, "b", {"encoder_8", "encoder_8"}); },
       "bundles: 'b' names runtime 'encoder_8', which is unknown or there twice"},
      {[](auto& d) { bundle(d, "encoder_8", {"encoder_8"}); }, "bundles: 'encoder_8' is empty or given twice"},
      {[](auto& d) { *d.add_more_models() = d.model(); }, "two models have the name 'encoder'"},
      {[](auto& d) { d.mutable_runtimes(1)->set_model("other"); },
       "runtimes: 'encoder_16' is of model 'other', which is not there"},
      {[](auto& d) {
         *d.add_more_models() = d.model();
         d.mutable_more_models(0)->set_name("other");
       },
       "model 'other' has no runtime"},
      {[](auto& d) { d.mutable_model()->set_share(-1); }, "model.share must be at least 0"},
      {[](auto& d) {
         for (int i = 0; i < 64; ++i) *d.add_more_models() = d.model();
       },
       "deployment.more_models: at most 64 models share instances"},
  };
  for (const auto& refusal : bad_deployments) {
    auto deployment = fixture::deployment();
    refusal.damage(deployment);
    const auto fault = check_deployment(deployment);
    ASSERT_TRUE(fault.has_value()) << "accepted, but: " << refusal.message;
    EXPECT_EQ(fault->message, refusal.message);
    EXPECT_EQ(fault->code, Code::kInvalidArgument);
  }
}

TEST(Deployment, LimitsAreTaken) {
  auto deployment = fixture::deployment();
  deployment.mutable_runtimes(0)->set_max_length(1U << 20);
  deployment.mutable_runtimes(0)->set_max_batch(4096);
  deployment.mutable_instances(0)->set_inflight_limit(65536);
  auto* input = deployment.mutable_model()->mutable_inputs(2);
  input->set_datatype("INT32");
  for (const std::int64_t pad : {std::int64_t{INT32_MIN}, std::int64_t{INT32_MAX}}) {
    input->set_pad_value(pad);
    const auto fault = check_deployment(deployment);
    EXPECT_FALSE(fault.has_value()) << fault->message;
  }
  EXPECT_EQ(make_model(deployment, deployment.model(), 0)->longest, 1 << 20);
}

TEST(Model, HoldsWhatTheDataPathNeeds) {
  auto deployment = fixture::deployment();
  deployment.mutable_model()->mutable_inputs(1)->set_pad_value(3);  // a mask is padded with 0, whatever is said
  const auto model = make_model(deployment, deployment.model(), 0);
  EXPECT_EQ(model->name, "encoder");
  EXPECT_EQ(model->slo_ns, 100'000'000);
  EXPECT_EQ(model->default_timeout_ns, 2'000'000'000);
  EXPECT_EQ(model->longest, 32);
  EXPECT_EQ(model->ids, 0U);
  EXPECT_EQ(model->mask, 1);
  ASSERT_EQ(model->inputs.size(), 3U);
  EXPECT_EQ(model->inputs[0].role, Role::kIds);
  EXPECT_EQ(model->inputs[0].pad_value, 5);
  EXPECT_EQ(model->inputs[0].item, 8U);
  EXPECT_EQ(model->inputs[1].role, Role::kMask);
  EXPECT_EQ(model->inputs[1].pad_value, 0);
  EXPECT_EQ(model->inputs[2].role, Role::kOther);
  EXPECT_EQ(model->inputs[2].pad_value, 7);
  EXPECT_TRUE(model->inputs[2].optional);
  ASSERT_EQ(model->outputs.size(), 3U);
  EXPECT_TRUE(model->outputs[0].token_level);
  EXPECT_EQ(model->outputs[0].item, 4U);
  EXPECT_EQ(model->outputs[0].dims, std::vector<std::int64_t>{2});
  EXPECT_EQ(model->outputs[2].item, 0U);
  EXPECT_EQ(model->find_input("token_type_ids"), 2);
  EXPECT_EQ(model->find_input("token_type"), -1);
  EXPECT_EQ(model->find_output("label"), 2);
  EXPECT_EQ(model->find_output(""), -1);

  const auto bare = fixture::model(1);
  EXPECT_EQ(bare->mask, -1);
  EXPECT_EQ(bare->inputs[0].item, 4U);
  EXPECT_EQ(fixture::model(2)->ids, 2U);
}

TEST(Model, TimesDoNotOverflow) {
  auto deployment = fixture::deployment();
  deployment.mutable_model()->set_slo_ms(UINT32_MAX);
  deployment.mutable_model()->set_default_timeout_ms(UINT32_MAX);
  const auto model = make_model(deployment, deployment.model(), 0);
  EXPECT_EQ(model->slo_ns, std::int64_t{UINT32_MAX} * 1'000'000);
  EXPECT_EQ(model->default_timeout_ns, std::int64_t{UINT32_MAX} * 1'000'000);
}

}  // namespace
}  // namespace arlo::gateway
