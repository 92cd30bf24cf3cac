#include "gateway/front/encode.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
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

MaybeFault encode(const Call& call, const std::vector<RowResponse>& rows, const Timing& timing, bool streamed,
                  std::uint64_t max_bytes, std::string* out) {
  ResponsePlan plan;
  if (auto fault = plan.build(*call.model, call.request, rows, timing, streamed)) return fault;

  constexpr std::uint32_t kInferResponse = 2;  // in ModelStreamInferResponse
  char prefix[16];
  wire::Writer writer(prefix);
  if (streamed) writer.header(kInferResponse, plan.size());
  const std::string_view head(prefix, static_cast<std::size_t>(writer.at() - prefix));
  if (head.size() + plan.size() > max_bytes) {
    return answer_too_large(head.size() + plan.size(), max_bytes);
  }
  out->reserve(head.size() + plan.size());
  out->append(head).resize(head.size() + plan.size());
  plan.write(out->data() + head.size());
  return {};
}

// Encodes a pipeline's answers of all rows, stage by stage, in the order of their ways.
class FlowEncoder {
 public:
  explicit FlowEncoder(Call& call) : call_(call), flow_(*call.model->flow) {
    for (auto& row : call.rows) {
      auto& answers = row.flow->answers;
      std::sort(answers.begin(), answers.end(), [](const auto& a, const auto& b) { return a.way < b.way; });
    }
  }

  MaybeFault write(const Timing& timing, inference::ModelInferResponse* out) {
    out->set_model_name(call_.model->name);
    out->set_model_version("1");
    out->set_id(std::string(call_.request.id()));
    const auto say = [&](const char* key, std::int64_t value) {
      (*out->mutable_parameters())[key].set_int64_param(value);
    };
    say("queue_us", timing.queue_us);
    say("execute_us", timing.execute_us);
    say("total_us", timing.total_us);
    say("computed_tokens", timing.computed_tokens);
    say("demoted", timing.demoted);
    say("batch_rows", timing.batch_rows);
    std::int64_t degraded = 0;
    for (const auto& row : call_.rows) degraded += row.flow->reason >= 0 ? 1 : 0;
    say("degraded", degraded);
    for (std::size_t s = 0; s < flow_.stages.size(); ++s) {
      const auto& stage = flow_.stages[s];
      for (std::size_t k = 0; k < stage.outputs.size(); ++k) {
        if (asked(stage.outputs[k])) {
          if (auto fault = write_answers(s, k, out)) return fault;
        }
      }
      if (asked(stage.row)) {
        std::vector<std::int32_t> of;
        for (const auto& row : call_.rows) {
          for (const auto& answer : row.flow->answers) {
            if (answer.stage == static_cast<std::int32_t>(s)) of.push_back(static_cast<std::int32_t>(row.index));
          }
        }
        add(stage.row, of, out);
      }
    }
    add_rows<std::int32_t>(flow_.made.answers, out, [](const FlowRow& row) {
      return std::count_if(row.answers.begin(), row.answers.end(), [](const auto& each) { return each.last; });
    });
    add_rows<float>(flow_.made.accuracy, out, [](const FlowRow& row) { return row.accuracy; });
    add_rows<std::int32_t>(flow_.made.reason, out, [](const FlowRow& row) { return row.reason + 1; });
    add_rows<std::int32_t>(flow_.made.dropped, out, [](const FlowRow& row) { return row.dropped; });
    add_rows<std::int32_t>(flow_.made.rerouted, out, [](const FlowRow& row) { return row.rerouted; });
    add_rows<std::int32_t>(flow_.made.tokens, out, tokens_of);
    if (flow_.made.tokens >= 0) {
      auto fewest = std::numeric_limits<std::int32_t>::max();
      for (const auto& row : call_.rows) fewest = std::min(fewest, tokens_of(*row.flow));
      say("tokens", fewest);
    }
    if (asked(flow_.made.route)) {
      std::string routes;
      for (const auto& row : call_.rows) {
        std::string route;
        for (const auto& answer : row.flow->answers) {
          if (answer.last && route.size() < kLongestRoute) route += (route.empty() ? "" : " ") + answer.route;
        }
        const auto size = static_cast<std::uint32_t>(route.size());
        routes.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(route);
      }
      tensor(flow_.made.route, {static_cast<std::int64_t>(call_.rows.size())}, out);
      out->add_raw_output_contents(std::move(routes));
    }
    return {};
  }

 private:
  static constexpr std::size_t kLongestRoute = 4096;

  [[nodiscard]] bool asked(int output) const { return output >= 0 && (call_.request.outputs() >> output & 1) != 0; }

  // The fewest tokens that a layer added, among the variants that answered a row.
  static std::int32_t tokens_of(const FlowRow& row) {
    std::int32_t fewest = std::numeric_limits<std::int32_t>::max();
    for (const auto& answer : row.answers) fewest = std::min(fewest, answer.tokens);
    return row.answers.empty() ? 0 : fewest;
  }

  void tensor(int output, const std::vector<std::int64_t>& shape, inference::ModelInferResponse* out) const {
    const auto& spec = call_.model->outputs[static_cast<std::size_t>(output)];
    auto* to = out->add_outputs();
    to->set_name(spec.name);
    to->set_datatype(spec.datatype);
    for (const auto dim : shape) to->add_shape(dim);
  }

  template <class T>
  void add(int output, const std::vector<T>& values, inference::ModelInferResponse* out) const {
    if (!asked(output)) return;
    tensor(output, {static_cast<std::int64_t>(values.size())}, out);
    out->add_raw_output_contents(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }

  // Adds an output with one number per row.
  template <class T, class Of>
  void add_rows(int output, inference::ModelInferResponse* out, Of of) const {
    std::vector<T> values;
    values.reserve(call_.rows.size());
    for (const auto& row : call_.rows) values.push_back(static_cast<T>(of(*row.flow)));
    add(output, values, out);
  }

  MaybeFault write_answers(std::size_t s, std::size_t k, inference::ModelInferResponse* out) const {
    const auto& stage = flow_.stages[s];
    const auto& spec = call_.model->outputs[static_cast<std::size_t>(stage.outputs[k])];
    std::string raw;
    std::int64_t many = 0;
    std::size_t elements = 0;  // per row
    for (const auto& row : call_.rows) {
      std::vector<float> sum;
      std::size_t summed = 0;
      for (const auto& answer : row.flow->answers) {
        if (answer.stage != static_cast<std::int32_t>(s)) continue;
        const auto& model = *stage.variants[static_cast<std::size_t>(answer.variant)].model;
        const int output = model.find_output(stage.of[k]);
        const auto bytes = answer.parsed.raw(output);
        if (many + static_cast<std::int64_t>(summed) > 0 && answer.parsed.elements(output) != elements) {
          return Fault{Code::kInternal, "output '" + spec.name + "' has other dimensions for other rows"};
        }
        elements = answer.parsed.elements(output);
        if (flow_.pool) {
          sum.resize(bytes.size() / sizeof(float));
          for (std::size_t i = 0; i < sum.size(); ++i) {
            float value = 0;
            std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
            sum[i] += value;
          }
          ++summed;
        } else {
          raw.append(bytes);
          ++many;
        }
      }
      if (!flow_.pool) continue;
      for (float& value : sum) value /= static_cast<float>(summed);
      raw.append(reinterpret_cast<const char*>(sum.data()), sum.size() * sizeof(float));
      ++many;
    }
    std::vector<std::int64_t> shape = {many};
    const auto open = std::count_if(spec.dims.begin(), spec.dims.end(), [](auto dim) { return dim < 0; });
    std::size_t known = 1;
    for (const auto dim : spec.dims) known *= dim > 0 ? static_cast<std::size_t>(dim) : 1;
    if (open > 1) {
      shape.push_back(static_cast<std::int64_t>(elements));
    } else {
      for (const auto dim : spec.dims) shape.push_back(dim < 0 ? static_cast<std::int64_t>(elements / known) : dim);
    }
    tensor(stage.outputs[k], shape, out);
    out->add_raw_output_contents(std::move(raw));
    return {};
  }

  Call& call_;
  const FlowSpec& flow_;
};

MaybeFault encode_flow(Call& call, bool streamed, std::uint64_t max_bytes, std::string* out) {
  inference::ModelStreamInferResponse whole;
  auto& response = *whole.mutable_infer_response();
  if (auto fault = FlowEncoder(call).write(timing_of(call), &response)) return fault;
  if (streamed && call.request.wants_final_response()) {
    (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
  }
  const std::size_t size = streamed ? whole.ByteSizeLong() : response.ByteSizeLong();
  if (size > max_bytes) return answer_too_large(size, max_bytes);
  *out = streamed ? whole.SerializeAsString() : response.SerializeAsString();
  forget_bodies(call);
  return {};
}

MaybeFault encode_here(Call& call, bool streamed, std::uint64_t max_bytes, std::string* out) {
  if (call.fault.code != Code::kOk) {
    Fault fault = call.fault;
    if (call.rows.size() > 1 && call.fault_row != Call::kNoRow) {
      fault.message = "row " + std::to_string(call.fault_row) + ": " + fault.message;
    }
    return fault;
  }
  if (call.model->flow != nullptr) return encode_flow(call, streamed, max_bytes, out);
  std::vector<RowResponse> rows;
  rows.reserve(call.rows.size());
  for (auto& row : call.rows) {
    rows.push_back(row.journey == nullptr ? std::move(row.parsed) : answer_of(call, *row.journey, true));
  }
  if (const auto size = call.request.cut_to(); size != 0) {
    for (auto& row : rows) row.cut_vector(call.model->vector_output(false), size);
  }
  auto fault = encode(call, rows, timing_of(call), streamed, max_bytes, out);
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
  return encode(call, {answer_of(call, partial.journey, false)}, timing, true, max_bytes, out);
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
