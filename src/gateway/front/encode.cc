#include "gateway/front/encode.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "base/wire.h"
#include "gateway/desk/flow_call.h"
#include "gateway/desk/journey.h"
#include "gateway/fleet/lane.h"
#include "kserve.h"
#include "rewrite/response.h"
#include "rewrite/spec.h"

namespace arlo::gateway {
namespace {

constexpr std::uint64_t kLongAnswer = 1 << 20;  // bytes from which another thread writes the answer

std::int64_t to_us(TimeNs ns) { return ns <= 0 ? 0 : ns / 1000; }

void add_stages(const Journey& journey, Timing& timing) {
  const auto ran = static_cast<std::size_t>(journey.last_visited) + 1;
  timing.stages.resize(std::max(timing.stages.size(), ran));
  for (std::size_t i = 0; i < ran; ++i) {
    auto& stage = timing.stages[i];
    stage.queue_us = std::max(stage.queue_us, to_us(journey.visits[i].queued_ns));
    stage.execute_us = std::max(stage.execute_us, to_us(journey.visits[i].executed_ns));
  }
  timing.escalated += journey.escalated ? 1 : 0;
  timing.degraded += flow::degraded(journey.reason) ? 1 : 0;
  timing.pruned_tokens += journey.pruned;
}

Timing timing_of(const Call& call) {
  Timing timing;
  TimeNs last = call.received_ns;
  for (const auto& row : call.rows) {
    timing.level = std::max<std::int64_t>(timing.level, row.level);
    timing.max_length = std::max<std::int64_t>(timing.max_length, row.max_length);
    timing.queue_us = std::max(timing.queue_us, to_us(row.queued_ns()));
    timing.execute_us = std::max(timing.execute_us, to_us(row.executed_ns()));
    if (row.journey != nullptr) add_stages(*row.journey, timing);
    timing.computed_tokens += row.padded;
    timing.demoted += row.demoted ? 1 : 0;
    timing.batch_rows = std::max<std::int64_t>(timing.batch_rows, row.batch_rows);
    last = std::max(last, row.ended_ns);
  }
  timing.total_us = to_us(last - call.received_ns);
  timing.tokenize_us = to_us(call.tokenized_ns);
  if (call.model->cascade != nullptr) timing.cascade_version = static_cast<std::int64_t>(call.model->cascade->version);
  return timing;
}

// Frees the bodies: the call lives until its client has read the answer.
void forget_bodies(Call& call) {
  for (auto& row : call.rows) {
    row.parsed = {};
    row.response.reset();
    row.journey.reset();
    row.flow.reset();
  }
}

// Writes the plan; on a stream, wrapped in a ModelStreamInferResponse.
MaybeFault write_plan(const ResponsePlan& plan, bool streamed, std::uint64_t max_bytes, std::string* out) {
  constexpr std::uint32_t kInferResponse = 2;  // in ModelStreamInferResponse
  const std::size_t size = plan.size();
  const std::size_t head = streamed ? wire::field_size(size) - size : 0;
  if (head + size > max_bytes) return answer_too_large(head + size, max_bytes);
  out->resize(head + size);
  wire::Writer writer(out->data());
  if (streamed) writer.header(kInferResponse, size);
  plan.write(writer.at());
  return {};
}

// Plans a pipeline's answers of all rows, stage by stage, in the order of their ways.
class FlowEncoder {
 public:
  FlowEncoder(Call& call, ResponsePlan& plan) : call_(call), flow_(*call.model->flow), plan_(plan) {
    for (auto& row : call.rows) std::ranges::sort(row.flow->answers, {}, &FlowAnswer::way);
  }

  MaybeFault build(const Timing& timing, bool streamed) {
    plan_.begin(call_.model->name, call_.request.id());
    plan_.parameters(timing);
    plan_.parameter("degraded",
                    std::ranges::count_if(call_.rows, [](const auto& row) { return row.flow->reason >= 0; }));
    if (flow_.made.tokens >= 0) {
      auto fewest = std::numeric_limits<std::int32_t>::max();
      for (const auto& row : call_.rows) fewest = std::min(fewest, tokens_of(*row.flow));
      plan_.parameter("tokens", fewest);
    }
    if (streamed && call_.request.wants_final_response()) plan_.flag("triton_final_response", true);
    for (std::size_t s = 0; s < flow_.stages.size(); ++s) {
      const auto& stage = flow_.stages[s];
      for (std::size_t k = 0; k < stage.outputs.size(); ++k) {
        if (!asked(stage.outputs[k])) continue;
        if (auto fault = add_answers(s, k)) return fault;
      }
      std::vector<std::int32_t> of;
      for (const auto& row : call_.rows) {
        of.insert(of.end(), count_answers(*row.flow, s), static_cast<std::int32_t>(row.index));
      }
      add(stage.row, of);
    }
    add_rows<std::int32_t>(flow_.made.answers, [](const FlowRow& row) {
      return std::ranges::count_if(row.answers, [](const auto& each) { return each.last; });
    });
    add_rows<float>(flow_.made.accuracy, [](const FlowRow& row) { return row.accuracy; });
    add_rows<std::int32_t>(flow_.made.reason, [](const FlowRow& row) { return row.reason + 1; });
    add_rows<std::int32_t>(flow_.made.dropped, [](const FlowRow& row) { return row.dropped; });
    add_rows<std::int32_t>(flow_.made.rerouted, [](const FlowRow& row) { return row.rerouted; });
    add_rows<std::int32_t>(flow_.made.tokens, tokens_of);
    if (!asked(flow_.made.route)) return {};
    std::string routes;
    for (const auto& row : call_.rows) {
      std::string route;
      for (const auto& answer : row.flow->answers) {
        if (answer.last && route.size() < kLongestRoute) route += (route.empty() ? "" : " ") + answer.route;
      }
      routes.resize(routes.size() + sizeof(std::uint32_t) + route.size());
      put_element(route, routes.data() + routes.size() - sizeof(std::uint32_t) - route.size());
    }
    output(flow_.made.route, {static_cast<std::int64_t>(call_.rows.size())});
    plan_.add(kept_.emplace_back(std::move(routes)));
    return {};
  }

 private:
  static constexpr std::size_t kLongestRoute = 4096;

  [[nodiscard]] bool asked(int output) const { return output >= 0 && (call_.request.outputs() >> output & 1) != 0; }

  static std::size_t count_answers(const FlowRow& row, std::size_t stage) {
    return static_cast<std::size_t>(
        std::ranges::count(row.answers, static_cast<std::int32_t>(stage), &FlowAnswer::stage));
  }

  // The fewest tokens that a layer added, among the variants that answered a row.
  static std::int32_t tokens_of(const FlowRow& row) {
    std::int32_t fewest = std::numeric_limits<std::int32_t>::max();
    for (const auto& answer : row.answers) fewest = std::min(fewest, answer.tokens);
    return row.answers.empty() ? 0 : fewest;
  }

  void output(int output, const std::vector<std::int64_t>& shape) {
    plan_.output(call_.model->outputs[static_cast<std::size_t>(output)], shape);
  }

  template <class T>
  void add_values(const std::vector<T>& values) {
    plan_.add(kept_.emplace_back(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }

  template <class T>
  void add(int to, const std::vector<T>& values) {
    if (!asked(to)) return;
    output(to, {static_cast<std::int64_t>(values.size())});
    add_values(values);
  }

  // Adds an output with one number per row.
  template <class T, class Of>
  void add_rows(int output, Of of) {
    std::vector<T> values;
    values.reserve(call_.rows.size());
    for (const auto& row : call_.rows) values.push_back(static_cast<T>(of(*row.flow)));
    add(output, values);
  }

  MaybeFault add_answers(std::size_t s, std::size_t k) {
    const auto& stage = flow_.stages[s];
    const auto& spec = call_.model->outputs[static_cast<std::size_t>(stage.outputs[k])];
    std::size_t many = 0;
    for (const auto& row : call_.rows) many += flow_.pool ? 1 : count_answers(*row.flow, s);
    std::optional<std::size_t> elements;  // per row
    std::vector<std::string_view> parts;
    std::vector<float> sums;
    for (const auto& row : call_.rows) {
      const std::size_t begin = sums.size();
      for (const auto& answer : row.flow->answers) {
        if (answer.stage != static_cast<std::int32_t>(s)) continue;
        const auto& model = *stage.variants[static_cast<std::size_t>(answer.variant)].model;
        const int output = model.find_output(stage.of[k]);
        const auto bytes = answer.parsed.raw(output);
        if (elements.value_or(answer.parsed.elements(output)) != answer.parsed.elements(output)) {
          return Fault{Code::kInternal, "output '" + spec.name + "' has other dimensions for other rows"};
        }
        elements = answer.parsed.elements(output);
        parts.push_back(bytes);
        if (!flow_.pool) continue;
        sums.resize(begin + bytes.size() / sizeof(float));
        for (std::size_t i = begin; i < sums.size(); ++i) {
          float value = 0;
          std::memcpy(&value, bytes.data() + (i - begin) * sizeof(float), sizeof(float));
          sums[i] += value;
        }
      }
      const auto summed = static_cast<float>(count_answers(*row.flow, s));
      for (std::size_t i = begin; i < sums.size(); ++i) sums[i] /= summed;
    }
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(many)};
    std::size_t known = 1;
    for (const auto dim : spec.dims) known *= dim > 0 ? static_cast<std::size_t>(dim) : 1;
    const auto each = static_cast<std::int64_t>(elements.value_or(0));
    if (std::ranges::count_if(spec.dims, [](auto dim) { return dim < 0; }) > 1) {
      shape.push_back(each);
    } else {
      for (const auto dim : spec.dims) shape.push_back(dim < 0 ? each / static_cast<std::int64_t>(known) : dim);
    }
    output(stage.outputs[k], shape);
    if (flow_.pool) {
      add_values(sums);
    } else {
      for (const auto part : parts) plan_.add(part);
    }
    return {};
  }

  Call& call_;
  const FlowSpec& flow_;
  ResponsePlan& plan_;
  std::deque<std::string> kept_;  // what the plan views besides the answers
};

MaybeFault encode_here(Call& call, bool streamed, std::uint64_t max_bytes, std::string* out) {
  if (call.fault.code != Code::kOk) {
    Fault fault = call.fault;
    if (call.rows.size() > 1 && call.fault_row != Call::kNoRow) {
      fault.message = "row " + std::to_string(call.fault_row) + ": " + fault.message;
    }
    return fault;
  }
  ResponsePlan plan;
  MaybeFault fault;
  const Timing timing = timing_of(call);
  if (call.model->flow != nullptr) {
    FlowEncoder flow(call, plan);
    fault = flow.build(timing, streamed);
    if (!fault) fault = write_plan(plan, streamed, max_bytes, out);
  } else {
    std::vector<RowResponse> rows;
    rows.reserve(call.rows.size());
    for (auto& row : call.rows) {
      rows.push_back(row.journey == nullptr ? std::move(row.parsed) : answer_of(call, *row.journey, true));
      if (call.request.cut_to() != 0) rows.back().cut_vector(call.model->vector_output(false), call.request.cut_to());
    }
    fault = plan.build(*call.model, call.request, rows, timing, streamed);
    if (!fault) fault = write_plan(plan, streamed, max_bytes, out);
  }
  if (!fault) forget_bodies(call);
  return fault;
}

}  // namespace

void encode_answer(Call& call, bool streamed, std::uint64_t max_bytes,
                   std::function<void(const MaybeFault&, std::string)> then) {
  const std::uint64_t known = call.fault.code == Code::kOk ? known_answer_bytes(*call.model, call.request) : 0;
  if (std::max<std::uint64_t>(known, call.body.size()) <= kLongAnswer) {
    std::string bytes;
    const auto fault = encode_here(call, streamed, max_bytes, &bytes);
    return then(fault, std::move(bytes));
  }
  auto made = std::make_shared<std::pair<MaybeFault, std::string>>();
  call.lane->aside().run(
      reinterpret_cast<const void*>(call.client),
      [&call, streamed, max_bytes, made] { made->first = encode_here(call, streamed, max_bytes, &made->second); },
      [then = std::move(then), made] { then(made->first, std::move(made->second)); });
}

MaybeFault encode_partial(const Call& call, PartialAnswer& partial, std::uint64_t max_bytes, std::string* out) {
  Timing timing;
  timing.partial = partial.row;
  add_stages(partial.journey, timing);
  timing.cascade_version = static_cast<std::int64_t>(call.model->cascade->version);
  timing.total_us = to_us(partial.at_ns - call.received_ns);
  ResponsePlan plan;
  const std::vector<RowResponse> row{answer_of(call, partial.journey, false)};
  if (auto fault = plan.build(*call.model, call.request, row, timing, true)) return fault;
  return write_plan(plan, true, max_bytes, out);
}

Fault answer_too_large(std::uint64_t bytes, std::uint64_t max_bytes) {
  return {Code::kResourceExhausted, "the answer is larger than max_message_bytes (" + std::to_string(bytes) + " vs. " +
                                        std::to_string(max_bytes) + "): ask for fewer rows or outputs at a time"};
}

std::string encode_stream_fault(const Fault& fault, std::string_view id) {
  inference::ModelStreamInferResponse response;
  std::string message = std::string("[") + code_name(fault.code) + "] " + fault.message;
  if (!valid_utf8(message)) message = printable(message);  // a worker's message may contain any bytes
  response.set_error_message(std::move(message));
  if (valid_utf8(id)) response.mutable_infer_response()->set_id(std::string(id));
  if (fault.predicted_ms != 0) {
    auto& parameters = *response.mutable_infer_response()->mutable_parameters();
    parameters[kPredictedMs].set_int64_param(fault.predicted_ms);
  }
  return response.SerializeAsString();
}

void answer_fault(transport::ServerCall& call, const Fault& fault) {
  std::vector<transport::Header> trailers;
  if (fault.predicted_ms != 0) trailers.push_back({kPredictedMs, std::to_string(fault.predicted_ms)});
  if (fault.code == Code::kResourceExhausted && !fault.overload) trailers.push_back({kRetry, "no"});
  call.finish(static_cast<std::uint32_t>(fault.code), fault.message, trailers);
}

const char* code_name(Code code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto number = static_cast<std::size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

}  // namespace arlo::gateway
