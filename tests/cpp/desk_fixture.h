// The desk's books of pipelines and cascades under random events: trees, clients that leave, workers that fail, are
// busy or die, and deployments that change. No thread and no socket: what the desk sends is answered here, when and as
// chance has it.
#pragma once

#include <arlo/v1/admin.pb.h>
#include <arlo/v1/config.pb.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gateway/desk/desk.h"
#include "gateway/fleet/fleet.h"
#include "gateway/fleet/lane.h"
#include "gateway/fleet/pipeline.h"
#include "kserve.h"

namespace arlo::gateway {

inline constexpr TimeNs kMillisecond = 1'000'000;
inline constexpr std::int32_t kLongest = 32;
inline constexpr const char* kPipeline = "pipe";

inline std::string raw(const std::vector<std::int64_t>& values) {
  std::string bytes(values.size() * sizeof(std::int64_t), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A client's.
class TestCall final : public Call {
 public:
  void complete() override { ++completed; }
  int completed = 0;
};

class DeskRig final : private UpstreamListener, private AuditListener {
 public:
  // `cascade`: in place of a pipeline, of its stages one after the other.
  explicit DeskRig(std::uint64_t seed, bool cascade = false)
      : random(seed),
        cascade_(cascade),
        config_(made_config()),
        by_deadline_(below(3) > 0),
        scheduler_({.policy = dispatch::Policy::kLate,
                    .max_queued = 40,
                    .batching = by_deadline_ ? dispatch::Batching::kDeadline : dispatch::Batching::kFill}),
        fleet_(config_, scheduler_, [this](Effects& effects, TimeNs at) { desk_.settle(effects, at); }),
        desk_(config_, scheduler_, fleet_, books_, *this, *this) {
    tokens_ = !cascade_ && by_deadline_ && below(2) == 0;
    const auto count = cascade_ ? 2 + below(2) : 1 + below(4);
    for (std::uint64_t s = 0; s < count; ++s) {
      stages_.push_back({static_cast<std::int32_t>(s == 0 ? -1 : below(s)), 1 + below(2), below(3) == 0, below(3) == 0,
                         tokens_ && below(3) > 0, s > 0 && below(2) == 0, below(2) == 0, below(2) == 0});
    }
    drop_ = std::vector<const char*>{"slack", "slack", "last", "per_task", "reroute", "none"}[below(6)];
    router_ = std::vector<const char*>{"price", "plan", "maf"}[below(3)];
    partial_ = below(2) == 0;
    tenants_ = below(2) == 0;
    if (!cascade_ && !tokens_ && count > 1 && below(2) == 0) join();
    deploy();
  }

  void step() {
    now += static_cast<TimeNs>(below(3)) * kMillisecond;
    const auto what = below(100);
    if (what < 40) {
      submit();
    } else if (what < 85) {
      if (!running_.empty()) answer(below(running_.size()));
    } else if (what < 92) {
      if (!calls.empty()) {
        auto& call = *calls[below(calls.size())];
        Effects effects;
        if (call.completed == 0) desk_.cancel(call, now, effects);
        run(effects);
      }
    } else if (what < 98) {
      tick();
    } else {
      deploy();
    }
  }

  // No more clients: every worker answers well until nothing is left.
  void end() {
    good_ = true;
    for (int i = 0; i < 20'000 && (open() > 0 || desk_.own_open()); ++i) {
      now += kMillisecond;
      while (!running_.empty()) answer(0);
      tick();
    }
    while (!running_.empty()) answer(0);
  }

  [[nodiscard]] std::size_t open() const {
    std::size_t found = 0;
    for (const auto& call : calls) found += call->completed == 0 ? 1U : 0U;
    return found;
  }

  [[nodiscard]] v1::Stats stats() const {
    v1::Stats out;
    desk_.fill_flow(&out, fleet_.model(kPipeline).get());
    return out;
  }

  // The stage that joins rows; empty: none does.
  [[nodiscard]] std::string joined() const {
    return stages_.back().joins.empty() ? "" : "s" + std::to_string(stages_.size() - 1);
  }
  [[nodiscard]] bool own_open() const { return desk_.own_open(); }  // audits and the like
  [[nodiscard]] const dispatch::Scheduler& scheduler() const { return scheduler_; }
  [[nodiscard]] std::uint32_t at_workers() const { return desk_.at_workers(); }

  std::mt19937_64 random;
  TimeNs now = 1000 * kMillisecond;
  std::vector<std::unique_ptr<TestCall>> calls;
  std::uint64_t late_starts = 0;  // rows sent to a worker when their deadline had passed

 private:
  struct Stage {
    std::int32_t parent;
    std::uint64_t variants;
    bool exits;                            // rows that are sure end there
    bool chunks;                           // its rows come in pieces
    bool counts;                           // its variant is chosen for a batch, when it begins
    bool anew;                             // it answers what its parent has answered
    bool mixes;                            // and both are mixed
    bool follows;                          // and what goes on depends on the load
    std::vector<std::int32_t> joins = {};  // stages whose rows it joins, in place of a parent
    std::int32_t fork = -1;                // of whose rows
  };

  static v1::GatewayConfig made_config() {
    v1::GatewayConfig config;
    add(config, R"(max_attempts: 3 unavailable_grace_ms: 50 dispatch { max_queued: 40 }
        health { interval_ms: 20 timeout_ms: 10 failures: 2 retry_interval_ms: 5 silence_ms: 1000 })");
    return config;
  }

  // Adds the fields that a text gives.
  static void add(google::protobuf::Message& message, const std::string& text) {
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &message)) << text;
  }

  [[nodiscard]] bool comes_of(std::int32_t stage, std::int32_t fork) const {
    while (stage > fork) stage = stages_[static_cast<std::size_t>(stage)].parent;
    return stage == fork;
  }

  // A last stage, of tensors, for what one or two others have made of a row.
  void join() {
    const auto count = static_cast<std::int32_t>(stages_.size());
    const auto tail = static_cast<std::int32_t>(1 + below(stages_.size() - 1));
    std::vector<std::int32_t> tails = {tail};
    std::int32_t fork = stages_[static_cast<std::size_t>(tail)].parent;
    if (fork > 0 && below(2) == 0) fork = stages_[static_cast<std::size_t>(fork)].parent;
    for (std::int32_t other = count - 1; other > fork && tails.size() == 1; --other) {
      bool leaf = other != tail && comes_of(other, fork);
      for (const Stage& stage : stages_) leaf = leaf && stage.parent != other;
      if (!leaf) continue;
      stages_[static_cast<std::size_t>(other)].exits = false;
      tails.push_back(other);
    }
    for (std::int32_t at : tails) {  // no answer before the row's own
      for (; at > fork; at = stages_[static_cast<std::size_t>(at)].parent)
        stages_[static_cast<std::size_t>(at)].anew = false;
    }
    stages_.push_back({tail, 1 + below(2), false, false, false, false, false, false, tails, fork});
    // And one more behind it, of the same fork or of one before.
    if (below(3) > 0) return;
    const auto last = static_cast<std::int32_t>(stages_.size()) - 1;
    while (fork > 0 && below(2) == 0) fork = stages_[static_cast<std::size_t>(fork)].parent;
    for (std::int32_t at = last; at > fork; at = stages_[static_cast<std::size_t>(at)].parent) {
      stages_[static_cast<std::size_t>(at)].anew = false;
    }
    stages_.push_back({last, 1, false, false, false, false, false, false, {last}, fork});
  }

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  static void fill_model(v1::Model& model, const std::string& name, bool joins) {
    add(model, R"(slo_ms: 100 default_timeout_ms: 500 outputs { name: "logits" datatype: "FP32" dims: 2 })");
    model.set_name(name);
    add(model, joins ? R"(inputs { name: "logits" datatype: "FP32" role: ROLE_TENSOR dims: -1 dims: 2 })"
                     : R"(inputs { name: "input_ids" datatype: "INT64" role: ROLE_IDS }
                          inputs { name: "attention_mask" datatype: "INT64" role: ROLE_MASK })");
  }

  void fill_rule(v1::TokenRule& rule) {
    add(rule, R"(batch: 4 delta_us: 5000 eta_us: 20000 mu: 1 beta: 10 initial_us: 1000 window_us: 1000000
        horizon_us: 50000 looked_at: 8 shadow: .3)");
    rule.set_rule(std::vector<const char*>{"price", "printed"}[below(2)]);
  }

  // The same flow, or nearly, with another plan and other workers.
  void deploy() {
    v1::Deployment deployment;
    deployment.set_version(++version_);
    auto* pipeline = deployment.add_pipelines();
    add(*pipeline, "slo_ms: 100 default_timeout_ms: 500 max_bytes: 65536 audit: .3");
    pipeline->set_name(kPipeline);
    pipeline->set_router(router_);
    pipeline->set_drop(drop_);
    pipeline->set_partial(partial_);
    pipeline->set_max_children(static_cast<std::uint32_t>(12 + below(8) / 7));  // another flow, for what comes
    for (const char* name : tenants_ ? std::vector<const char*>{"a", "b"} : std::vector<const char*>{}) {
      auto* tenant = pipeline->add_tenants();
      tenant->set_name(name);
      tenant->set_share(1);
    }
    pipeline->mutable_plan()->set_price(static_cast<double>(below(5)) * .5);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      auto* item = pipeline->add_stages();
      item->set_name("s" + std::to_string(s));
      item->set_logits("logits");
      const std::string both = "s" + std::to_string(s) + "_both";
      auto* bundle = stage.counts && stage.variants > 1 ? deployment.add_bundles() : nullptr;
      if (bundle != nullptr) bundle->set_name(both);
      if (stage.counts) fill_rule(*item->mutable_tokens());
      for (std::uint64_t v = 0; v < stage.variants; ++v) {
        const std::string name = "m" + std::to_string(s) + std::to_string(v);
        const auto ms = static_cast<std::uint32_t>(1 + 4 * v);
        fill_model(*(s + v == 0 ? deployment.mutable_model() : deployment.add_more_models()), name,
                   !stage.joins.empty());
        auto* runtime = deployment.add_runtimes();
        add(*runtime, "max_batch: 4 capacity: 50");
        runtime->set_name(name + "_len");
        runtime->set_model(name);
        runtime->set_max_length(kLongest);
        for (const std::uint32_t rows : {1U, 4U}) {
          auto* point = runtime->add_latency();
          point->set_length(kLongest);
          point->set_batch(rows);
          point->set_latency_us(1000 * ms * (1 + rows / 4));
        }
        auto* variant = item->add_variants();
        variant->set_model(name);
        variant->set_accuracy(.7 + .1 * static_cast<double>(v));
        variant->set_work_s(.0005 * ms);
        variant->set_least_us(1000 * ms);
        if (tokens_) variant->set_tokens(static_cast<std::int32_t>(4 * v));
        if (bundle != nullptr) bundle->add_runtimes(runtime->name());
        if (bundle != nullptr && v == 0) continue;  // its workers have both
        // The first of a stage always has a worker: nothing waits for ever.
        for (std::uint64_t w = v == 0 || bundle != nullptr ? 0 : 1; w < 1 + below(3); ++w) {
          auto* instance = deployment.add_instances();
          instance->set_id(name + "@" + std::to_string(w));
          instance->set_endpoint("127.0.0.1:1");
          instance->set_runtime(bundle != nullptr ? both : runtime->name());
          instance->set_inflight_limit(static_cast<std::uint32_t>(1 + below(2)));
        }
      }
      if (stage.exits) {
        auto* edge = pipeline->add_edges();
        edge->set_from(static_cast<std::uint32_t>(s));
        edge->set_to(-1);
        edge->mutable_guard()->set_at_least(.8);
      }
    }
    for (std::size_t s = 1; s < stages_.size(); ++s) {
      for (const std::int32_t tail : stages_[s].joins) {
        auto* edge = pipeline->add_edges();
        edge->set_from(static_cast<std::uint32_t>(tail));
        edge->set_to(static_cast<std::int32_t>(s));
        edge->set_join(static_cast<std::uint32_t>(stages_[s].fork));
        for (std::uint64_t v = 0; v < stages_[static_cast<std::size_t>(tail)].variants; ++v) edge->add_factor(1);
      }
      if (!stages_[s].joins.empty()) continue;
      auto* edge = pipeline->add_edges();
      edge->set_from(static_cast<std::uint32_t>(stages_[s].parent));
      edge->set_to(static_cast<std::int32_t>(s));
      if (stages_[s].anew) {
        edge->set_falls_back(true);
        if (stages_[s].mixes) add(*edge, "weights: [1, 2]");
      }
      if (stages_[s].anew && stages_[s].follows) {
        edge->mutable_guard()->set_rule(below(2) == 0 ? "price" : "planned");
        for (std::uint64_t v = 0; v < stages_[static_cast<std::size_t>(stages_[s].parent)].variants; ++v) {
          add(*edge, "guard { gain { score: [0, 1] gain: [.6, -.4] } }");
        }
      }
      for (std::uint64_t v = 0; v < stages_[static_cast<std::size_t>(stages_[s].parent)].variants; ++v) {
        edge->add_factor(1);
      }
      if (!stages_[s].chunks || stages_[s].anew) continue;
      add(*edge, "chunks { window: 10 stride: 8 }");
    }
    if (cascade_) as_cascade(deployment);
    const auto wrong = [](const MaybeFault& fault) { return fault ? fault->message : std::string(); };
    ASSERT_EQ(wrong(check_deployment(deployment)), "");
    ASSERT_EQ(wrong(check_flows(deployment)), "");
    bool changed = false;
    ASSERT_EQ(wrong(fleet_.admit(deployment, &changed)), "");
    while (books_.size() < fleet_.variants()) books_.push_back(std::make_unique<Books>());
    for (std::size_t i = 0; i < books_.size(); ++i) {
      books_[i]->relevel(scheduler_, static_cast<dispatch::VariantId>(i));
    }
    Effects effects;
    v1::ApplyReply reply;
    fleet_.install(deployment, &reply, now, effects);
    run(effects);
    tick();
  }

  void as_cascade(v1::Deployment& deployment) {
    deployment.clear_pipelines();
    auto& cascade = *deployment.add_cascades();
    add(cascade, R"(slo_ms: 100 default_timeout_ms: 500 logits: "logits" answer_margin_ms: 2 labels: ["no", "yes"]
        shadow_share: .5 shadow_max_busy: 1 drift_epsilon: .5
        point: "usual" points { name: "usual" ensemble: "none" prices {} })");
    cascade.set_name(kPipeline);
    cascade.set_expire(below(3) == 0);
    cascade.set_fail(below(3) == 0);
    cascade.set_auto_price(below(2) == 0);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      auto& stage = *cascade.add_stages();
      add(stage, R"(score: "max" over: "min" weight: 1 calibrator { kind: "temperature" t: 1 })");
      stage.set_model("m" + std::to_string(s) + "0");
      auto& price = *cascade.mutable_points(0)->mutable_prices(0);
      if (s > 0) add(price, "rules { below { length: " + std::to_string(kLongest) + " value: .9 } }");
    }
  }

  void submit() {
    inference::ModelInferRequest message;
    message.set_model_name(kPipeline);
    const auto rows = static_cast<std::int64_t>(1 + below(cascade_ ? 8 : 3));
    const auto tokens = static_cast<std::int64_t>(3 + below(kLongest - 3));
    for (const char* name : {"input_ids", "attention_mask"}) {
      auto* input = message.add_inputs();
      input->set_name(name);
      input->set_datatype("INT64");
      input->add_shape(rows);
      input->add_shape(tokens);
      message.add_raw_input_contents(raw(std::vector<std::int64_t>(static_cast<std::size_t>(rows * tokens), 1)));
    }
    auto& wishes = *message.mutable_parameters();
    if (!cascade_ && below(2) == 0) wishes["utility"].set_double_param(static_cast<double>(below(5)));
    if (!cascade_ && below(4) == 0) wishes["min_accuracy"].set_double_param(.8 * static_cast<double>(below(2)));
    if (!cascade_ && below(2) == 0) {  // one that asks for more than the other, who may be none of those that are known
      wishes["tenant"].set_string_param(std::vector<const char*>{"a", "a", "a", "b", "c"}[below(5)]);
    }
    if (below(5) == 0) wishes["arlo_class"].set_string_param("bulk");
    calls.push_back(std::make_unique<TestCall>());
    TestCall& call = *calls.back();
    call.lane = &lane_;
    call.model = fleet_.model(kPipeline);
    call.body = message.SerializeAsString();
    ASSERT_FALSE(call.request.parse(call.body).has_value());
    ASSERT_FALSE(call.request.bind(*call.model, {}).has_value());
    call.received_ns = now;
    call.deadline_ns = now + static_cast<TimeNs>(20 + below(400)) * kMillisecond;
    Effects effects;
    desk_.submit(call, now, effects);
    run(effects);
  }

  void tick() {
    Effects effects;
    fleet_.tick(now, effects);
    desk_.tick(now, effects);
    run(effects);
  }

  // A worker is through with what it was sent.
  void answer(std::size_t which) {
    const auto [upstream, body] = running_[which];
    running_[which] = running_.back();
    running_.pop_back();
    auto reply = Reply::kGood;
    const auto luck = good_ ? 99 : below(100);
    if (luck < 6) {
      reply = Reply::kError;
    } else if (luck < 9) {
      reply = Reply::kBusy;
    } else if (luck < 12) {
      reply = Reply::kDead;
    }
    std::shared_ptr<const std::string> bytes;
    if (reply == Reply::kGood) bytes = std::make_shared<const std::string>(answer_to(body));
    const auto bad = upstream->take_all(bytes);
    EXPECT_FALSE(bad.has_value()) << bad->message;
    const Fault fault = reply == Reply::kGood ? Fault{} : Fault{Code::kUnavailable, "by chance"};
    Effects effects;
    desk_.answered(*upstream, reply, fault, now, effects);
    run(effects);
    delete upstream;
  }

  std::string answer_to(const std::string& body) {
    inference::ModelInferRequest request;
    EXPECT_TRUE(request.ParseFromString(body));
    const auto rows = request.inputs(0).shape(0);
    inference::ModelInferResponse response;
    auto* output = response.add_outputs();
    output->set_name("logits");
    output->set_datatype("FP32");
    output->add_shape(rows);
    output->add_shape(2);
    std::string values;
    for (std::int64_t i = 0; i < 2 * rows; ++i) {
      const auto value = static_cast<float>(below(5));
      values.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    response.add_raw_output_contents(values);
    return response.SerializeAsString();
  }

  void run(Effects& effects) {
    EXPECT_TRUE(effects.actions.empty());  // a decision that is still there is never carried out
    for (UpstreamCall* upstream : effects.starts) {
      for (auto& part : upstream->parts()) {
        const Row* row = part.row();
        if (row != nullptr && !part.left_out && now > row->call->deadline_ns) ++late_starts;
      }
      running_.emplace_back(upstream, upstream->write());
    }
    for (const auto& [audit, row] : effects.audits) {
      const auto fault = audit->write(row);
      EXPECT_FALSE(fault.has_value()) << fault->message;
      audit->received_ns = now;
      audit->deadline_ns = now + audit->about().of->default_timeout_ns;
    }
    for (Call* call : effects.releases) call->let_go();
    for (const auto& [audit, row] : effects.audits) {
      Effects more;
      desk_.submit(*audit, now, more);
      run(more);
    }
    for (const auto& call : effects.calls) call();
    for (const auto& instance : effects.checks) {
      Effects more;
      fleet_.checked(instance, {}, good_ || below(20) > 0, now, more);
      run(more);
    }
  }

  void upstream_done(UpstreamCall& /*upstream*/, transport::Answer /*answer*/) override {}
  void audit_done(Audit& audit) override {
    desk_.audit_ended(audit);
    delete &audit;
  }

  const bool cascade_;
  const v1::GatewayConfig config_;
  const bool by_deadline_;
  Lane lane_;
  dispatch::Scheduler scheduler_;
  BooksByVariant books_;
  Fleet fleet_;
  Desk desk_;
  std::vector<Stage> stages_;
  std::string drop_;
  std::string router_;
  bool partial_ = false;
  bool tokens_ = false;
  bool tenants_ = false;
  bool good_ = false;
  std::uint64_t version_ = 0;
  std::vector<std::pair<UpstreamCall*, std::string>> running_;
};

}  // namespace arlo::gateway
