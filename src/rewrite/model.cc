#include "rewrite/model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/time.h"

namespace arlo::gateway {
namespace {

std::atomic<bool> has_helpers{false};

// Of each token that a text is cut to, the most bytes that a helper looks at (MOST_CHARACTERS of arlo/front/helper.py).
constexpr std::size_t kBytesPerToken = std::size_t{4} * 250;
constexpr std::uint32_t kLongestLength = 1U << 20;  // tokens; above it is surely a mistake

MaybeFault check_model(const v1::Model& model) {
  if (model.name().empty()) return invalid("model.name is empty");
  if (!std::isfinite(model.share()) || model.share() < 0) return invalid("model.share must be at least 0");
  if (model.slo_ms() == 0) return invalid("model.slo_ms must be above 0");
  if (model.default_timeout_ms() == 0) return invalid("model.default_timeout_ms must be above 0");
  int ids = 0;
  int masks = 0;
  if (auto fault = check_tensors(model)) return fault;
  std::set<std::string> names;
  for (const auto& input : model.inputs()) {
    if (input.name().empty() || !names.insert(input.name()).second) {
      return invalid("model.inputs: name '" + input.name() + "' is empty or given twice");
    }
    if (input.role() == v1::InputTensor::ROLE_TENSOR) continue;
    if (!input.dims().empty()) return invalid("model.inputs: '" + input.name() + "' has dims and is no ROLE_TENSOR");
    if (input.datatype() != "INT64" && input.datatype() != "INT32") {
      return invalid("model.inputs: '" + input.name() + "' has datatype '" + input.datatype() +
                     "'; token inputs are INT64 or INT32");
    }
    const bool small = input.datatype() == "INT32";
    if (small && input.pad_value() != static_cast<std::int32_t>(input.pad_value())) {
      return invalid("model.inputs: '" + input.name() + "' has pad_value " + std::to_string(input.pad_value()) +
                     ", which does not fit INT32");
    }
    switch (input.role()) {
      case v1::InputTensor::ROLE_IDS:
        ++ids;
        break;
      case v1::InputTensor::ROLE_MASK:
        ++masks;
        break;
      case v1::InputTensor::ROLE_OTHER:
        break;
      default:
        return invalid("model.inputs: '" + input.name() + "' has no role");
    }
  }
  if (ids != 1 && !all_tensors(model)) {
    return invalid("model.inputs must have exactly one input of role ROLE_IDS, not " + std::to_string(ids));
  }
  if (masks > 1) return invalid("model.inputs must have at most one input of role ROLE_MASK");
  if (model.outputs().empty()) return invalid("model.outputs is empty");
  if (model.outputs_size() > kMaxOutputs) {
    return invalid("model.outputs has " + std::to_string(model.outputs_size()) + " outputs; at most " +
                   std::to_string(kMaxOutputs) + " are taken");
  }
  names.clear();
  bool usual = false;
  for (const auto& output : model.outputs()) {
    usual = usual || !output.on_request();
    if (output.name().empty() || !names.insert(output.name()).second) {
      return invalid("model.outputs: name '" + output.name() + "' is empty or given twice");
    }
    const int size = datatype_size(output.datatype());
    if (size < 0) return invalid("model.outputs: '" + output.name() + "' has unknown datatype " + output.datatype());
    if (size == 0 && output.token_level()) {
      return invalid("model.outputs: '" + output.name() + "' is token-level BYTES, which cannot be trimmed");
    }
  }
  if (!usual) return invalid("model.outputs are all on_request: a request that names none would get nothing");
  Activation unused{};
  for (const auto& name : {model.label_activation(), model.score_activation()}) {
    if (!read_activation(name, &unused)) return invalid("model '" + model.name() + "': there is no activation " + name);
  }
  const auto is_default = [&](const auto& prompt) { return prompt.name() == model.default_prompt(); };
  if (!model.default_prompt().empty() && std::ranges::none_of(model.prompts(), is_default)) {
    return invalid("model '" + model.name() + "' has no prompt '" + model.default_prompt() + "', its default");
  }
  if (auto fault = check_tasks(model)) return fault;
  return check_children(model);
}

const v1::Model& model_named(const v1::Deployment& deployment, const std::string& name) {
  for (const v1::Model* model : models_of(deployment)) {
    if (model->name() == name) return *model;
  }
  return deployment.model();
}

MaybeFault check_runtime(const v1::Runtime& runtime) {
  const std::string where = "runtimes: '" + runtime.name() + "' ";
  if (runtime.max_length() == 0 || runtime.max_length() > kLongestLength) {
    return invalid(where + "needs a max_length of 1 to " + std::to_string(kLongestLength));
  }
  if (runtime.max_batch() == 0 || runtime.max_batch() > 4096) return invalid(where + "needs a max_batch of 1 to 4096");
  if (runtime.capacity() == 0) return invalid(where + "needs a capacity above 0");
  if (runtime.latency().empty()) return invalid(where + "needs at least one latency point");
  for (const auto& point : runtime.latency()) {
    if (point.length() == 0 || point.batch() == 0) return invalid(where + "has a latency point of length or batch 0");
  }
  return {};
}

}  // namespace

MaybeFault check_deployment(const v1::Deployment& deployment) {
  if (deployment.version() == 0) return invalid("deployment.version must be above 0");
  constexpr int kMostModels = 64;  // as many as the scheduler tells apart
  if (deployment.more_models_size() >= kMostModels) {
    return invalid("deployment.more_models: at most " + std::to_string(kMostModels) + " models share instances");
  }
  std::map<std::string, int> models;             // runtimes by the model's name
  std::map<std::string, std::uint32_t> lengths;  // of the first one
  for (const v1::Model* model : models_of(deployment)) {
    if (auto fault = check_model(*model)) return fault;
    if ((varies(*model) || !model->counts().empty()) && !of_pipeline(deployment, model->name())) {
      return invalid("model '" + model->name() +
                     "' takes tensors of varying size, or makes several rows of one: it is " +
                     "of use as a variant of a pipeline only");
    }
    if (!models.emplace(model->name(), 0).second) return invalid("two models have the name '" + model->name() + "'");
  }
  if (deployment.runtimes().empty()) return invalid("deployment.runtimes is empty");
  std::set<std::string> runtimes;
  for (const auto& runtime : deployment.runtimes()) {
    if (runtime.name().empty() || !runtimes.insert(runtime.name()).second) {
      return invalid("runtimes: name '" + runtime.name() + "' is empty or given twice");
    }
    if (auto fault = check_runtime(runtime)) return fault;
    const auto model = models.find(model_of(deployment, runtime));
    if (model == models.end()) {
      return invalid("runtimes: '" + runtime.name() + "' is of model '" + runtime.model() + "', which is not there");
    }
    const auto& one = model_named(deployment, model->first);
    const bool alike = all_tensors(one) && !ragged(one);
    const auto length = lengths.emplace(model->first, runtime.max_length()).first->second;
    if (alike && (runtime.dynamic() || runtime.max_length() != length)) {
      return invalid("runtimes: '" + runtime.name() +
                     "' is of a model without tokens, whose rows are all of one length");
    }
    ++model->second;
  }
  for (const auto& [name, count] : models) {
    if (count == 0) return invalid("model '" + name + "' has no runtime");
  }
  std::set<std::string> held = runtimes;
  for (const auto& bundle : deployment.bundles()) {
    const std::string where = "bundles: '" + bundle.name() + "' ";
    if (bundle.name().empty() || !held.insert(bundle.name()).second) return invalid(where + "is empty or given twice");
    if (bundle.runtimes().empty()) return invalid(where + "has no runtimes");
    std::set<std::string> members;
    const auto bad = std::find_if(bundle.runtimes().begin(), bundle.runtimes().end(), [&](const std::string& name) {
      return runtimes.count(name) == 0 || !members.insert(name).second;
    });
    if (bad != bundle.runtimes().end()) {
      return invalid(where + "names runtime '" + *bad + "', which is unknown or there twice");
    }
  }
  std::set<std::string> instances;
  for (const auto& instance : deployment.instances()) {
    const std::string where = "instances: '" + instance.id() + "' ";
    if (instance.id().empty() || !instances.insert(instance.id()).second)
      return invalid(where + "is empty or given twice");
    if (instance.endpoint().empty()) return invalid(where + "has no endpoint");
    if (held.count(instance.runtime()) == 0)
      return invalid(where + "names unknown runtime '" + instance.runtime() + "'");
    if (instance.inflight_limit() == 0 || instance.inflight_limit() > 65536) {
      return invalid(where + "needs an inflight_limit of 1 to 65536");
    }
  }
  return {};
}

std::vector<const v1::Model*> models_of(const v1::Deployment& deployment) {
  std::vector<const v1::Model*> models{&deployment.model()};
  for (const auto& model : deployment.more_models()) models.push_back(&model);
  return models;
}

std::vector<std::string> names_of(const v1::Deployment& deployment) {
  std::vector<std::string> names;
  for (const v1::Model* model : models_of(deployment)) names.push_back(model->name());
  for (const auto& cascade : deployment.cascades()) names.push_back(cascade.name());
  for (const auto& pipeline : deployment.pipelines()) names.push_back(pipeline.name());
  return names;
}

bool inner(const v1::Deployment& deployment, std::string_view model) {
  const auto is = [&](const auto& one) { return one.model() == model; };
  for (const auto& cascade : deployment.cascades()) {
    if (std::any_of(cascade.stages().begin(), cascade.stages().end(), is)) return true;
  }
  return of_pipeline(deployment, model);
}

bool of_pipeline(const v1::Deployment& deployment, std::string_view model) {
  const auto is = [&](const auto& one) { return one.model() == model; };
  for (const auto& pipeline : deployment.pipelines()) {
    for (const auto& stage : pipeline.stages()) {
      if (std::any_of(stage.variants().begin(), stage.variants().end(), is)) return true;
    }
  }
  return false;
}

const std::string& model_of(const v1::Deployment& deployment, const v1::Runtime& runtime) {
  return runtime.model().empty() ? deployment.model().name() : runtime.model();
}

void text_has_helpers() { has_helpers = true; }

MaybeFault wait_for(text::Job* job, const TextSpec& spec) {
  if (job == nullptr) return Fault{Code::kInternal, "the text of this request cannot be made token ids here"};
  if (job->done) return job->fault;
  job->tokenizer = spec.elsewhere;
  return Fault{Code::kUnavailable, "the text is not token ids yet"};
}

namespace {

// Returns the part of a text that a helper may look at, plus at least one character as a sign that there was more.
std::string looked_at(std::string_view text, const text::Limits& limits, bool written) {
  const std::size_t most = kBytesPerToken * limits.most_tokens + 4;
  if (written || limits.most_tokens == 0 || text.size() <= most) return std::string(text);
  const auto within = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  std::size_t at = limits.keep_end ? text.size() - most : most;
  while (at > 0 && at < text.size() && within(text[at])) at += limits.keep_end ? 1 : -1;
  return std::string(limits.keep_end ? text.substr(at) : text.substr(0, at));
}

}  // namespace

MaybeFault encode_texts(const TextSpec& spec, const std::vector<std::string_view>& texts,
                        const std::vector<std::string_view>& seconds, const text::Limits& limits, text::Job* job,
                        std::vector<text::Encoding>* out) {
  out->resize(texts.size());
  if (spec.elsewhere == nullptr) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::optional<std::string_view> second;
      if (!seconds.empty()) second = seconds[i];
      if (auto fault = spec.tokenizer.encode(texts[i], second, limits, (*out)[i])) {
        fault->message = "row " + std::to_string(i) + ": " + fault->message;
        return fault;
      }
    }
    return {};
  }
  if (auto fault = wait_for(job, spec)) {
    if (job != nullptr && job->wanted() && job->texts.empty()) {
      for (const auto text : texts) job->texts.push_back(looked_at(text, limits, job->written));
      for (const auto text : seconds) job->seconds.push_back(looked_at(text, limits, job->written));
      job->limits = limits;
    }
    return fault;
  }
  if (job->made.size() != texts.size()) return Fault{Code::kInternal, "the tokenizer answered for other texts"};
  *out = job->made;  // it may be asked for again, when another job of the request is done
  return {};
}

bool ModelSpec::takes_text() const { return text != nullptr && text->no_text.empty(); }

bool ModelSpec::text_elsewhere() const {
  return (text != nullptr && text->elsewhere != nullptr) ||
         std::any_of(wordings.begin(), wordings.end(), [](const auto& one) { return one->text_elsewhere(); });
}

std::shared_ptr<const TextSpec> make_text(const std::string& tokenizer_json) {
  if (tokenizer_json.empty()) return nullptr;
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const TextSpec>> made;
  const std::lock_guard lock(mutex);
  std::erase_if(made, [](const auto& entry) { return entry.second.expired(); });
  auto& kept = made[tokenizer_json];
  if (auto known = kept.lock()) return known;
  auto text = std::make_shared<TextSpec>();
  if (const auto fault = text::Tokenizer::read(tokenizer_json, text->tokenizer)) {
    static std::atomic<std::uint64_t> id{0};
    if (fault->code == Code::kUnimplemented && has_helpers) {
      text->elsewhere = std::make_shared<const text::Elsewhere>(text::Elsewhere{++id, tokenizer_json});
    } else {
      text->no_text = fault->message;
    }
  }
  kept = text;
  return text;
}

std::shared_ptr<const ModelSpec> make_model(const v1::Deployment& deployment, const v1::Model& from,
                                            std::uint16_t variant) {
  auto model = std::make_shared<ModelSpec>();
  model->name = from.name();
  model->variant = variant;
  if (from.share() > 0) model->share = from.share();
  for (const auto& input : from.inputs()) {
    InputSpec spec;
    spec.name = input.name();
    spec.datatype = input.datatype();
    spec.item = static_cast<std::size_t>(datatype_size(input.datatype()));
    spec.pad_value = input.pad_value();
    spec.optional = input.optional();
    if (input.role() == v1::InputTensor::ROLE_IDS) {
      spec.role = Role::kIds;
      model->ids = model->inputs.size();
    } else if (input.role() == v1::InputTensor::ROLE_TENSOR) {
      spec.role = Role::kTensor;
      spec.dims.assign(input.dims().begin(), input.dims().end());
    } else if (input.role() == v1::InputTensor::ROLE_MASK) {
      spec.role = Role::kMask;
      spec.pad_value = 0;
      model->mask = static_cast<std::int64_t>(model->inputs.size());
    }
    model->inputs.push_back(std::move(spec));
  }
  const auto any_ids = [](const InputSpec& input) { return input.role == Role::kIds; };
  if (std::none_of(model->inputs.begin(), model->inputs.end(), any_ids)) {
    const auto needed = [](const InputSpec& input) { return !input.optional; };
    model->ids = static_cast<std::size_t>(std::find_if(model->inputs.begin(), model->inputs.end(), needed) -
                                          model->inputs.begin());
  }
  for (const auto& output : from.outputs()) {
    if (output.on_request()) model->usual &= ~(OutputSet{1} << model->outputs.size());
    model->outputs.push_back({output.name(),
                              output.datatype(),
                              static_cast<std::size_t>(datatype_size(output.datatype())),
                              output.token_level(),
                              {output.dims().begin(), output.dims().end()},
                              output.on_request(),
                              output.of_children()});
    if (output.name() == from.counts()) model->counts = static_cast<int>(model->outputs.size()) - 1;
  }
  model->labels.assign(from.labels().begin(), from.labels().end());
  for (const auto& task : from.tasks()) {
    model->tasks.push_back({task.name(), {task.labels().begin(), task.labels().end()}});
  }
  if (!model->tasks.empty()) model->task = model->find_input(kTask);
  for (const auto& prompt : from.prompts()) model->prompts.emplace_back(prompt.name(), prompt.text());
  model->default_prompt = from.default_prompt();
  model->dimensions = from.dimensions();
  read_activation(from.label_activation(), &model->label_activation);
  read_activation(from.score_activation(), &model->score_activation);
  model->text = make_text(from.tokenizer());
  model->stage = inner(deployment, model->name);
  if (!model->of_tensors())
    model->vocabulary = from.vocabulary() != 0 ? std::int64_t{from.vocabulary()} : all_ids(model->inputs[model->ids]);
  model->slo_ns = std::int64_t{from.slo_ms()} * kMs;
  model->default_timeout_ns = std::int64_t{from.default_timeout_ms()} * kMs;
  for (const auto& runtime : deployment.runtimes()) {
    if (model_of(deployment, runtime) != model->name) continue;
    model->longest = std::max(model->longest, static_cast<std::int32_t>(runtime.max_length()));
  }
  return model;
}

}  // namespace arlo::gateway
