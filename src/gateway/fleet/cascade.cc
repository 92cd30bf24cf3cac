#include "gateway/fleet/cascade.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/utf8.h"
#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

constexpr const char* kImportance = "importance";
constexpr const char* kConfidence = "confidence";

flow::StageSpec stage_of(const v1::CascadeStage& from) {
  flow::StageSpec to;
  to.judge.label_order.assign(from.label_order().begin(), from.label_order().end());
  to.judge.calibrator = calibrator_of(from.calibrator());
  to.judge.score = score_of(from.score());
  to.judge.over = named<flow::Over>(
      from.over(), {{"min", flow::Over::kMin}, {"mean", flow::Over::kMean}, {"q10", flow::Over::kQ10}}, "over");
  to.judge.squared = from.squared();
  to.words = from.tokenizer_group();
  to.weight = from.weight();
  return to;
}

flow::Rules rules_of(const v1::CascadePoint& from) {
  flow::Rules to;
  for (const auto& price : from.prices()) {
    auto& rules = to.prices.emplace_back();
    for (const auto& rule : price.rules()) rules.push_back(guard_of(rule));
  }
  to.start = static_cast<std::int32_t>(std::min<std::uint32_t>(from.start(), flow::kMaxStages));
  for (const auto& skip : from.skip()) to.skip.emplace_back(skip.cuts().begin(), skip.cuts().end());
  if (from.has_prune()) to.prune = prune_of(from.prune());
  to.ensemble = named<flow::Ensemble>(
      from.ensemble(),
      {{"none", flow::Ensemble::kNone}, {"raw", flow::Ensemble::kRaw}, {"calibrated", flow::Ensemble::kCalibrated}},
      "ensemble");
  return to;
}

flow::CascadeSpec spec_of(const v1::Cascade& from) {
  flow::CascadeSpec to;
  std::transform(from.stages().begin(), from.stages().end(), std::back_inserter(to.stages), stage_of);
  to.labels = from.labels_size();
  std::transform(from.words().begin(), from.words().end(), std::back_inserter(to.vocabularies), vocabulary_of);
  return to;
}

bool same(const OutputSpec& a, const OutputSpec& b) {
  return a.datatype == b.datatype && a.token_level == b.token_level && a.dims == b.dims;
}

// Whether a stage uses the first stage's tokens.
bool of_first_group(const v1::Cascade& cascade, std::size_t stage) {
  return cascade.stages(static_cast<int>(stage)).tokenizer_group() == cascade.stages(0).tokenizer_group();
}

bool same(const std::vector<InputSpec>& a, const std::vector<InputSpec>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const InputSpec& x, const InputSpec& y) {
    return x.name == y.name && x.datatype == y.datatype && x.role == y.role && x.optional == y.optional;
  });
}

// The outputs of all stages; those missing from some stage become signals.
std::vector<OutputSpec> joined_outputs(const std::vector<std::shared_ptr<const ModelSpec>>& stages) {
  std::vector<OutputSpec> all;
  for (const auto& stage : stages) {
    for (const auto& output : stage->outputs) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == output.name; });
      if (known == all.end()) all.push_back(output);
    }
  }
  for (auto& output : all) {
    for (const auto& stage : stages) output.on_request = output.on_request || stage->find_output(output.name) < 0;
  }
  return all;
}

// Max length of the longest runtime, in tokens, among the stages that share a stage's vocabulary.
std::int32_t longest_of(const v1::Cascade& cascade, const std::vector<std::shared_ptr<const ModelSpec>>& stages,
                        std::size_t like) {
  std::int32_t longest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const bool alike = cascade.stages(static_cast<int>(s)).tokenizer_group() ==
                       cascade.stages(static_cast<int>(like)).tokenizer_group();
    if (alike) longest = std::max(longest, stages[s]->longest);
  }
  return longest;
}

std::vector<std::int32_t> levels_of(const v1::Deployment& deployment, const std::string& model) {
  std::set<std::int32_t> levels;
  for (const auto& runtime : deployment.runtimes()) {
    if (model_of(deployment, runtime) != model) continue;
    if (runtime.dynamic()) return {};
    levels.insert(static_cast<std::int32_t>(runtime.max_length()));
  }
  return {levels.begin(), levels.end()};
}

// Stages must share a vocabulary, or all must have a tokenizer so that the gateway can tokenise the client's text.
MaybeFault check_vocabularies(const v1::Cascade& cascade, const std::vector<std::shared_ptr<const ModelSpec>>& stages,
                              const std::string& where) {
  const auto& first = *stages.front();
  bool several = false;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = *stages[s];
    if (!of_first_group(cascade, s)) {
      several = true;
      continue;
    }
    if (!same(stage.inputs, first.inputs)) {
      return invalid(where + "stage '" + stage.name + "' has other inputs than stage '" + first.name + "'");
    }
    if (stage.vocabulary != first.vocabulary) {
      return invalid(where + "stage '" + stage.name + "' has another vocabulary than stage '" + first.name + "'");
    }
  }
  if (!several) return {};
  if (cascade.labels().empty()) {
    return invalid(where + "its stages have different vocabularies, and answers about tokens need one");
  }
  for (const auto& stage : stages) {
    if (stage->takes_text()) continue;
    return invalid(
        where + "its stages have different vocabularies, so it takes text, and stage '" + stage->name +
        "' takes none: " + (stage->text == nullptr ? "it was compiled without a tokenizer" : stage->text->no_text));
  }
  return {};
}

}  // namespace

MaybeFault check_cascade(const v1::Cascade& cascade, const FindModel& model) {
  const std::string where = "cascade '" + cascade.name() + "': ";
  if (cascade.slo_ms() == 0 || cascade.default_timeout_ms() == 0) {
    return invalid(where + "slo_ms and default_timeout_ms must be above 0");
  }
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  if (!share(cascade.shadow_share()) || !share(cascade.shadow_max_busy()) || !share(cascade.drift_epsilon()) ||
      cascade.drift_epsilon() == 1) {
    return invalid(where + "shadow_share, shadow_max_busy and drift_epsilon must be shares, the last one below 1");
  }
  if (cascade.points().empty()) return invalid(where + "it has no operating point");
  std::set<std::string> points = {"first", "last"};
  for (const auto& point : cascade.points()) {
    if (point.name().empty() || !points.insert(point.name()).second) {
      return invalid(where + "point '" + point.name() + "' has no name, a reserved one, or that of another");
    }
  }
  if (points.count(cascade.point()) == 0 || cascade.point() == "first" || cascade.point() == "last") {
    return invalid(where + "point '" + cascade.point() + "' is not one of its points");
  }
  std::vector<std::shared_ptr<const ModelSpec>> stages;
  for (const auto& stage : cascade.stages()) {
    stages.push_back(model(stage.model()));
    if (stages.back() == nullptr) return invalid(where + "stage '" + stage.model() + "' is no model of the deployment");
  }
  try {
    const auto spec = spec_of(cascade);
    flow::validate(spec);
    for (const auto& point : cascade.points()) flow::validate(rules_of(point), spec);
  } catch (const std::invalid_argument& error) {
    return invalid(where + error.what());
  }
  if (auto fault = check_vocabularies(cascade, stages, where)) return fault;
  for (const auto& stage : stages) {
    if (stage->of_tensors()) {
      return invalid(where + "stage '" + stage->name + "' takes tensors; rows of a cascade are token ids");
    }
    for (const auto& output : stage->outputs) {
      for (const auto& other : stages) {
        const int at = other->find_output(output.name);
        if (at >= 0 && !same(output, other->outputs[static_cast<std::size_t>(at)])) {
          return invalid(where + "output '" + output.name + "' of stage '" + stage->name + "' is another one in '" +
                         other->name + "'");
        }
      }
    }
    for (const auto& name : {cascade.logits(), cascade.end_logits()}) {
      if (name.empty()) continue;
      const int at = stage->find_output(name);
      if (at < 0 || stage->outputs[static_cast<std::size_t>(at)].datatype != "FP32") {
        std::string what = where;
        what.append("stage '").append(stage->name).append("' has no output '").append(name);
        return invalid(what.append("' of FP32, which is judged"));
      }
    }
  }
  if (cascade.logits().empty()) return invalid(where + "logits names no output");
  if (cascade.labels_size() > 0) {
    const std::vector<std::int64_t> labels = {cascade.labels_size()};
    const auto& front = *stages.front();  // all stages have the same
    const auto& dims = front.outputs[static_cast<std::size_t>(front.find_output(cascade.logits()))].dims;
    if (dims != labels && dims != std::vector<std::int64_t>{-1}) {
      return invalid(where + "output '" + cascade.logits() + "' does not have a number for each of its " +
                     std::to_string(labels.front()) + " labels");
    }
  }
  if (joined_outputs(stages).size() + 4 > kMaxOutputs) return invalid(where + "its stages have too many outputs");
  for (int i = 0; i < cascade.stages_size(); ++i) {
    if (cascade.stages(i).score() == "output" && stages[static_cast<std::size_t>(i)]->find_output(kConfidence) < 0) {
      return invalid(where + "stage '" + cascade.stages(i).model() + "' has no output 'confidence' to score by");
    }
  }
  return {};
}

int Cascade::find_point(std::string_view name) const {
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string Cascade::choices() const {
  std::string text;
  for (const auto& each : points) text += "'" + each.name + "', ";
  return text + "'first', 'last'";
}

MaybeFault Cascade::check(const CascadeWishes& wishes) const {
  const auto point_known =
      wishes.point.empty() || wishes.point == "first" || wishes.point == "last" || find_point(wishes.point) >= 0;
  if (!point_known) return invalid("parameter cascade: " + quoted(wishes.point) + " is none of " + choices());
  if (wishes.last >= static_cast<std::int64_t>(stages.size())) {
    return invalid("parameter cascade_max_stage: " + std::to_string(wishes.last) + " is above the last stage, " +
                   std::to_string(stages.size() - 1));
  }
  if (wishes.point == "last" && wishes.last >= 0 && wishes.last + 1 < static_cast<std::int64_t>(stages.size())) {
    return invalid("parameters cascade and cascade_max_stage: 'last' is stage " + std::to_string(stages.size() - 1) +
                   ", which is above " + std::to_string(wishes.last));
  }
  return {};
}

std::shared_ptr<const ModelSpec> make_cascade(const v1::Deployment& deployment, const v1::Cascade& from,
                                              const FindModel& find, dispatch::VariantId variant) {
  std::vector<std::shared_ptr<const ModelSpec>> stages;
  for (const auto& stage : from.stages()) stages.push_back(find(stage.model()));
  auto cascade = std::make_shared<Cascade>();
  cascade->spec = spec_of(from);
  cascade->labels.assign(from.labels().begin(), from.labels().end());
  cascade->version = deployment.version();
  cascade->seed = from.seed();
  cascade->margin = TimeNs{from.answer_margin_ms()} * kMs;
  cascade->expire = from.expire();
  cascade->fail = from.fail();
  cascade->auto_price = from.auto_price();
  cascade->shadow_share = from.shadow_share();
  cascade->shadow_max_busy = from.shadow_max_busy();
  cascade->drift_epsilon = from.drift_epsilon();
  cascade->content = std::hash<std::string>{}(from.SerializeAsString());

  auto model = std::make_shared<ModelSpec>();
  model->name = from.name();
  model->variant = variant;
  model->inputs = stages.front()->inputs;
  model->ids = stages.front()->ids;
  model->mask = stages.front()->mask;
  model->vocabulary = stages.front()->vocabulary;
  model->slo_ns = TimeNs{from.slo_ms()} * kMs;
  model->default_timeout_ns = TimeNs{from.default_timeout_ms()} * kMs;
  model->outputs = joined_outputs(stages);

  auto& outputs = cascade->outputs;
  outputs.logits = model->find_output(from.logits());
  // Other outputs are unusable: all rows of one request must have the same outputs, whichever stage answers them.
  model->labels.assign(from.labels().begin(), from.labels().end());
  if (from.labels_size() > 0) model->outputs[static_cast<std::size_t>(outputs.logits)].dims = {from.labels_size()};
  if (!from.end_logits().empty()) outputs.end_logits = model->find_output(from.end_logits());
  outputs.importance = model->find_output(kImportance);
  outputs.confidence = model->find_output(kConfidence);
  const auto make = [&](const char* name, const char* datatype, std::vector<std::int64_t> dims) {
    cascade->made |= OutputSet{1} << model->outputs.size();
    model->outputs.push_back({name, datatype, 4, false, std::move(dims), true});
    return static_cast<int>(model->outputs.size()) - 1;
  };
  if (from.labels_size() > 0) outputs.probabilities = make("probabilities", "FP32", {from.labels_size()});
  outputs.stage = make("cascade_stage", "INT32", {});
  outputs.sureness = make("cascade_confidence", "FP32", {});
  outputs.reason = make("cascade_reason", "INT32", {});
  for (std::size_t i = 0; i < model->outputs.size(); ++i) {
    const OutputSet bit = OutputSet{1} << i;
    const bool everywhere =
        (cascade->made & bit) != 0 || std::all_of(stages.begin(), stages.end(), [&](const auto& stage) {
          return stage->find_output(model->outputs[i].name) >= 0;
        });
    // After pruning, this output would be about other tokens than the client's.
    if (!everywhere || model->outputs[i].name == kImportance) model->inner |= bit;
    if (!model->outputs[i].on_request) {
      if (model->usual == kAllOutputs) model->usual = 0;
      model->usual |= OutputSet{1} << i;
    }
  }

  // An answer about tokens must cover all of them.
  const bool about_tokens = std::any_of(model->outputs.begin(), model->outputs.end(),
                                        [](const auto& output) { return output.token_level && !output.on_request; });
  for (const auto& each : from.points()) {
    auto& point = cascade->points.emplace_back();
    point.name = each.name();
    point.rules = rules_of(each);
    point.prunes = point.rules.prune.alpha > 0 && outputs.importance >= 0 && !about_tokens;
    if (each.has_accuracy()) point.accuracy = each.accuracy();
    if (each.name() == from.point()) cascade->point = cascade->points.size() - 1;
  }
  const bool prunes = std::any_of(cascade->points.begin(), cascade->points.end(), [](auto& p) { return p.prunes; });
  for (std::size_t s = 0; s < stages.size(); ++s) {
    auto& stage = cascade->stages.emplace_back();
    stage.model = stages[s];
    stage.levels = levels_of(deployment, stages[s]->name);
    if (model->text == nullptr) model->text = stages[s]->text;
    model->longest = std::max(model->longest, stages[s]->longest);
    const auto bit = [](int output) { return output < 0 ? OutputSet{0} : OutputSet{1} << output; };
    for (std::size_t i = 0; i < model->outputs.size(); ++i) {
      if (stages[s]->find_output(model->outputs[i].name) >= 0) stage.has |= OutputSet{1} << i;
    }
    stage.always = bit(outputs.logits) | bit(outputs.end_logits);
    if (cascade->spec.stages[s].judge.score == flow::Score::kOutput) stage.always |= bit(outputs.confidence);
    if (prunes && s + 1 < stages.size()) stage.always |= bit(outputs.importance) & stage.has;
  }
  // Stages with their vocabularies as wordings; two stages of one group share one.
  std::map<std::uint32_t, std::size_t> wordings;
  std::vector<std::shared_ptr<const ModelSpec>> made;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (of_first_group(from, s)) continue;
    const auto [at, fresh] = wordings.emplace(from.stages(static_cast<int>(s)).tokenizer_group(), made.size());
    if (fresh) {
      auto wording = std::make_shared<ModelSpec>(*model);
      const auto& stage = *stages[s];
      wording->name = stage.name;
      wording->inputs = stage.inputs;
      wording->ids = stage.ids;
      wording->mask = stage.mask;
      wording->vocabulary = stage.vocabulary;
      wording->text = stage.text;
      wording->longest = longest_of(from, stages, s);
      made.push_back(std::move(wording));
    }
    cascade->stages[s].wording = at->second + 1;
  }
  if (!made.empty()) model->longest = longest_of(from, stages, 0);
  model->wordings = std::move(made);
  model->cascade = std::move(cascade);
  return model;
}

}  // namespace arlo::gateway
