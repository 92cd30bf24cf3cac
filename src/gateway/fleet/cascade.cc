#include "gateway/fleet/cascade.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "gateway/fleet/rules.h"

namespace arlo::gateway {
namespace {

using Stages = std::vector<std::shared_ptr<const ModelSpec>>;

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
  flow::validate(to);
  return to;
}

std::uint32_t group_of(const v1::Cascade& cascade, std::size_t stage) {
  return cascade.stages(static_cast<int>(stage)).tokenizer_group();
}

// The outputs of all stages; those missing from some stage become signals.
std::vector<OutputSpec> joined_outputs(const Stages& stages) {
  std::vector<OutputSpec> all;
  for (const auto& stage : stages) {
    for (const auto& output : stage->outputs) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == output.name; });
      if (known == all.end()) all.push_back(output);
    }
  }
  need(all.size() + 4 <= kMaxOutputs, "its stages have too many outputs");
  for (auto& output : all) {
    for (const auto& stage : stages) output.on_request = output.on_request || stage->find_output(output.name) < 0;
  }
  return all;
}

// Max length of the longest runtime, in tokens, among the stages that share a stage's vocabulary.
std::int32_t longest_of(const v1::Cascade& cascade, const Stages& stages, std::size_t like) {
  std::int32_t longest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (group_of(cascade, s) == group_of(cascade, like)) longest = std::max(longest, stages[s]->longest);
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
void check_vocabularies(const v1::Cascade& cascade, const Stages& stages) {
  const auto& first = *stages.front();
  bool several = false;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = *stages[s];
    const bool other = group_of(cascade, s) != group_of(cascade, 0);
    several = several || other;
    need(other || same_in(stage.inputs, first.inputs, &InputSpec::name, &InputSpec::datatype, &InputSpec::role,
                          &InputSpec::optional),
         "stage '" + stage.name + "' has other inputs than stage '" + first.name + "'");
    need(other || stage.vocabulary == first.vocabulary,
         "stage '" + stage.name + "' has another vocabulary than stage '" + first.name + "'");
  }
  if (!several) return;
  need(!cascade.labels().empty(), "its stages have different vocabularies, and answers about tokens need one");
  for (const auto& stage : stages) {
    need(stage->takes_text(),
         "its stages have different vocabularies, so it takes text, and stage '" + stage->name + "' takes none: " +
             (stage->text == nullptr ? "it was compiled without a tokenizer" : stage->text->no_text));
  }
}

Stages stages_of(const v1::Cascade& cascade, const FindModel& find) {
  Stages stages;
  for (const auto& from : cascade.stages()) {
    const auto& stage = stages.emplace_back(find(from.model()));
    const std::string name = "stage '" + from.model() + "' ";
    need(stage != nullptr, name + "is no model of the deployment");
    need(!stage->of_tensors(), name + "takes tensors; rows of a cascade are token ids");
    need(from.score() != "output" || stage->find_output(kConfidence) >= 0, name + "has no output 'confidence'");
    for (const auto& output : {cascade.logits(), cascade.end_logits()}) {
      if (!output.empty()) floats_of(*stage, output, "which is judged");
    }
  }
  need(!cascade.logits().empty(), "logits names no output");
  for (const auto& stage : stages) {
    for (const auto& output : stage->outputs) {
      for (const auto& other : stages) {
        const int at = other->find_output(output.name);
        const auto& same = at < 0 ? output : other->outputs[static_cast<std::size_t>(at)];
        need(output.datatype == same.datatype && output.token_level == same.token_level && output.dims == same.dims,
             "output '" + output.name + "' of stage '" + stage->name + "' is another one in '" + other->name + "'");
      }
    }
  }
  check_vocabularies(cascade, stages);
  return stages;
}

// Fills the outputs that clients see.
void set_outputs(const v1::Cascade& from, const Stages& stages, Cascade& cascade, ModelSpec& model) {
  model.outputs = joined_outputs(stages);
  auto& outputs = cascade.outputs;
  outputs.logits = model.find_output(from.logits());
  if (from.labels_size() > 0) {
    // Other outputs are unusable: all rows of one request must have the same outputs, whichever stage answers them.
    auto& dims = model.outputs[static_cast<std::size_t>(outputs.logits)].dims;
    const std::vector<std::int64_t> labels = {from.labels_size()};
    need(dims == labels || dims == std::vector<std::int64_t>{-1}, "output '" + from.logits() +
                                                                      "' does not have a number for each of its " +
                                                                      std::to_string(from.labels_size()) + " labels");
    dims = labels;
  }
  model.labels.assign(from.labels().begin(), from.labels().end());
  if (!from.end_logits().empty()) outputs.end_logits = model.find_output(from.end_logits());
  outputs.importance = model.find_output(kImportance);
  outputs.confidence = model.find_output(kConfidence);
  const auto make = [&](const char* name, const char* datatype, std::vector<std::int64_t> dims) {
    cascade.made |= OutputSet{1} << model.outputs.size();
    model.outputs.push_back({name, datatype, 4, false, std::move(dims), true});
    return static_cast<int>(model.outputs.size()) - 1;
  };
  if (from.labels_size() > 0) outputs.probabilities = make("probabilities", "FP32", {from.labels_size()});
  outputs.stage = make("cascade_stage", "INT32", {});
  outputs.sureness = make("cascade_confidence", "FP32", {});
  outputs.reason = make("cascade_reason", "INT32", {});
  model.usual = 0;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const OutputSet bit = OutputSet{1} << i;
    const bool everywhere = (cascade.made & bit) != 0 ||
                            std::all_of(stages.begin(), stages.end(),
                                        [&](const auto& one) { return one->find_output(model.outputs[i].name) >= 0; });
    // After pruning, this output would be about other tokens than the client's.
    if (!everywhere || model.outputs[i].name == kImportance) model.inner |= bit;
    if (!model.outputs[i].on_request) model.usual |= bit;
  }
  if (model.usual == 0) model.usual = kAllOutputs;
}

void set_points(const v1::Cascade& from, const ModelSpec& model, Cascade& cascade) {
  // An answer about tokens must cover all of them.
  const bool about_tokens = std::any_of(model.outputs.begin(), model.outputs.end(),
                                        [](const auto& output) { return output.token_level && !output.on_request; });
  std::set<std::string> names = {"first", "last"};
  for (const auto& each : from.points()) {
    need(!each.name().empty() && names.insert(each.name()).second,
         "point '" + each.name() + "' has no name, a reserved one, or that of another");
    auto& point = cascade.points.emplace_back();
    point.name = each.name();
    point.rules = rules_of(each);
    flow::validate(point.rules, cascade.spec);
    point.prunes = point.rules.prune.alpha > 0 && cascade.outputs.importance >= 0 && !about_tokens;
    if (each.has_accuracy()) point.accuracy = each.accuracy();
  }
  const int point = cascade.find_point(from.point());
  need(point >= 0, "point '" + from.point() + "' is not one of its points");
  cascade.point = static_cast<std::size_t>(point);
}

// Stages with their vocabularies as wordings; two stages of one group share one.
void set_wordings(const v1::Cascade& from, const Stages& stages, Cascade& cascade, ModelSpec& model) {
  std::map<std::uint32_t, std::size_t> wordings;
  std::vector<std::shared_ptr<const ModelSpec>> made;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (group_of(from, s) == group_of(from, 0)) continue;
    const auto [at, fresh] = wordings.emplace(group_of(from, s), made.size());
    if (fresh) {
      auto wording = std::make_shared<ModelSpec>(model);
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
    cascade.stages[s].wording = at->second + 1;
  }
  model.longest = longest_of(from, stages, 0);
  model.wordings = std::move(made);
}

}  // namespace

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
  const auto last = std::ssize(stages) - 1;
  if (wishes.last > last) {
    return invalid("parameter cascade_max_stage: " + std::to_string(wishes.last) + " is above the last stage, " +
                   std::to_string(last));
  }
  if (wishes.point == "last" && wishes.last >= 0 && wishes.last < last) {
    return invalid("parameters cascade and cascade_max_stage: 'last' is stage " + std::to_string(last) +
                   ", which is above " + std::to_string(wishes.last));
  }
  return {};
}

std::shared_ptr<const ModelSpec> make_cascade(const v1::Deployment& deployment, const v1::Cascade& from,
                                              const FindModel& find, dispatch::VariantId variant) {
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  need(share(from.shadow_share()) && share(from.shadow_max_busy()) && share(from.drift_epsilon()) &&
           from.drift_epsilon() < 1,
       "shadow_share, shadow_max_busy and drift_epsilon must be shares, the last one below 1");
  auto cascade = std::make_shared<Cascade>();
  cascade->spec = spec_of(from);
  const Stages stages = stages_of(from, find);
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

  const auto model = begin_model(from, *stages.front(), variant);
  set_outputs(from, stages, *cascade, *model);
  set_points(from, *model, *cascade);
  const bool prunes = std::any_of(cascade->points.begin(), cascade->points.end(), [](auto& p) { return p.prunes; });
  const auto& outputs = cascade->outputs;
  const auto bit = [](int output) { return output < 0 ? OutputSet{0} : OutputSet{1} << output; };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    auto& stage = cascade->stages.emplace_back();
    stage.model = stages[s];
    stage.levels = levels_of(deployment, stages[s]->name);
    if (model->text == nullptr) model->text = stages[s]->text;
    for (const auto& output : stages[s]->outputs) stage.has |= bit(model->find_output(output.name));
    stage.always = bit(outputs.logits) | bit(outputs.end_logits);
    if (cascade->spec.stages[s].judge.score == flow::Score::kOutput) stage.always |= bit(outputs.confidence);
    if (prunes && s + 1 < stages.size()) stage.always |= bit(outputs.importance) & stage.has;
  }
  set_wordings(from, stages, *cascade, *model);
  model->cascade = std::move(cascade);
  return model;
}

}  // namespace arlo::gateway
