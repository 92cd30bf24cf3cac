#include "plugins/scheduler/client.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "plugins/triton_errors.h"
#include "rewrite/spec.h"

namespace arlo::triton {
namespace {

constexpr TRITONSERVER_DataType kInvalid = TRITONSERVER_TYPE_INVALID;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;  // columns of a request, padding of the client's included

TRITONSERVER_Error* Invalid(const std::string& what) { return NewError(TRITONSERVER_ERROR_INVALID_ARG, what); }

TRITONSERVER_Error_Code CodeOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return TRITONSERVER_ERROR_INVALID_ARG;
    case Code::kCancelled:
      return TRITONSERVER_ERROR_CANCELLED;
    case Code::kInternal:
      return TRITONSERVER_ERROR_INTERNAL;
    default:  // Triton has no code for deadlines and overload, and says this itself
      return TRITONSERVER_ERROR_UNAVAILABLE;
  }
}

// The bytes of an input: the client's own memory, or a copy where it came in several pieces or lies in a GPU's memory.
// An engine that takes all of it may still read it there.
TRITONSERVER_Error* ReadInput(TRITONBACKEND_Input* input, const char* name, std::uint64_t bytes, std::uint32_t buffers,
                              const Memory& memory, Call* call, std::size_t index) {
  static const char kEmpty[8] = {};
  Call::Given given{kEmpty, {}};
  const char* host = kEmpty;
  char* gathered = nullptr;
  std::uint64_t done = 0;
  const auto gather = [&] {
    call->gathered.push_back(memory.Pinned(bytes));
    host = gathered = call->gathered.back().get();
  };
  if (buffers > 1) gather();
  for (std::uint32_t i = 0; i < buffers; ++i) {
    const void* part = nullptr;
    std::uint64_t size = 0;
    Place place;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, i, &part, &size, &place.type, &place.id));
    if (size > bytes - done) return Invalid(std::string("input '") + name + "' has more bytes than its shape needs");
    if (buffers == 1) given = {part, place};
    if (gathered == nullptr && !place.on_host()) gather();
    if (gathered == nullptr) {
      host = static_cast<const char*>(part);
    } else {
      ARLO_RETURN_IF_ERROR(memory.Copy(gathered + done, {}, part, place, size));
    }
    done += size;
  }
  if (buffers > 1) given = {gathered, Memory::PlaceOf(call->gathered.back())};
  call->inputs[index] = host;
  call->given[index] = given;
  return done == bytes ? nullptr : Invalid(std::string("input '") + name + "' has fewer bytes than its shape needs");
}

std::string ShapeText(const std::int64_t* shape, std::uint32_t dims) {
  std::string text = "[";
  for (std::uint32_t i = 0; i < dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

TRITONSERVER_Error* ReadInputs(const LogicalConfig& config, const Memory& memory, Call* call) {
  const auto& model = config.model;
  std::uint32_t count = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(call->request, &count));
  call->inputs.assign(model.inputs.size(), nullptr);
  call->given.resize(model.inputs.size());
  std::int64_t rows = -1;
  for (std::uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(call->request, i, &input));
    const char* name = nullptr;
    TRITONSERVER_DataType datatype = kInvalid;
    const std::int64_t* shape = nullptr;
    std::uint32_t dims = 0;
    std::uint64_t bytes = 0;
    std::uint32_t buffers = 0;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &bytes, &buffers));
    const int index = model.find_input(name);
    if (index < 0) return Invalid(std::string("unknown input '") + name + "'");
    const auto& spec = model.inputs[static_cast<std::size_t>(index)];
    if (datatype != DatatypeOf(spec.datatype)) {
      return Invalid("input '" + spec.name + "' must be of " + spec.datatype);
    }
    if (dims != 2 || shape[0] < 1 || shape[1] < 0 || (rows >= 0 && (shape[0] != rows || shape[1] != call->width))) {
      return Invalid("input '" + spec.name + "' has shape " + ShapeText(shape, dims) +
                     "; all inputs need the same: [rows, tokens]");
    }
    // Before anything is computed from them.
    if (shape[0] > config.max_rows) {
      return Invalid("too many rows: max_batch_size of the logical model is " + std::to_string(config.max_rows));
    }
    if (shape[1] > kMostTokens) return Invalid("input '" + spec.name + "' has too many columns");
    rows = shape[0];
    call->width = shape[1];
    if (bytes != static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(call->width) * spec.item) {
      return Invalid("input '" + spec.name + "' has " + std::to_string(bytes) +
                     " bytes, which its shape does not need");
    }
    ARLO_RETURN_IF_ERROR(ReadInput(input, name, bytes, buffers, memory, call, static_cast<std::size_t>(index)));
  }
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    const auto& spec = model.inputs[i];
    const bool needed = i == model.ids || (spec.role == gateway::Role::kOther && !spec.optional);
    if (needed && call->inputs[i] == nullptr) return Invalid("input '" + spec.name + "' is missing");
  }
  const char* const mask = model.mask < 0 ? nullptr : call->inputs[static_cast<std::size_t>(model.mask)];
  const auto fault = gateway::find_lengths(model, call->inputs[model.ids], mask, rows, call->width, call->lengths);
  return fault ? Invalid(fault->message) : nullptr;
}

TRITONSERVER_Error* ReadOutputs(const gateway::ModelSpec& model, Call* call) {
  std::uint32_t count = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestOutputCount(call->request, &count));
  for (std::uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestOutputName(call->request, i, &name));
    const int output = model.find_output(name);
    if (output < 0) return Invalid(std::string("unknown output '") + name + "'");
    call->outputs |= gateway::OutputSet{1} << output;
  }
  if (call->outputs == 0) call->outputs = model.usual;
  return nullptr;
}

TRITONSERVER_Error* ReadClass(const LogicalConfig& config, Call* call) {
  if (config.usual_priority > 0) {
    // Triton has no call for it that takes a backend's request. It is the same object as the server's, in all versions.
    auto* const request = reinterpret_cast<TRITONSERVER_InferenceRequest*>(call->request);
    std::uint64_t priority = 0;
    ARLO_RETURN_IF_ERROR(TRITONSERVER_InferenceRequestPriorityUInt64(request, &priority));
    call->bulk = priority > config.usual_priority;
  }
  std::uint32_t count = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestParameterCount(call->request, &count));
  for (std::uint32_t i = 0; i < count; ++i) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_RequestParameter(call->request, i, &key, &type, &value));
    if (std::string_view(key) != "arlo_class") continue;
    const std::string_view text =
        type == TRITONSERVER_PARAMETER_STRING ? static_cast<const char*>(value) : std::string_view{};
    if (text != "bulk" && text != "interactive") {
      return Invalid("parameter arlo_class must be a string: interactive or bulk");
    }
    call->bulk = text == "bulk";
  }
  return nullptr;
}

TRITONSERVER_Error* WriteOutput(const gateway::ModelSpec& model, const Memory& own, const Call& call,
                                std::size_t spec_index, TRITONBACKEND_Response* response) {
  const auto& spec = model.outputs[spec_index];
  const auto longest = static_cast<std::size_t>(*std::max_element(call.lengths.begin(), call.lengths.end()));
  const auto index = static_cast<int>(spec_index);
  const Answer::Output* const first = call.rows.front().answer->Find(index);
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(call.rows.size())};
  if (spec.token_level) shape.push_back(static_cast<std::int64_t>(longest));
  shape.insert(shape.end(), first->tail.begin(), first->tail.end());
  TRITONBACKEND_Output* output = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, spec.name.c_str(), DatatypeOf(spec.datatype),
                                                    shape.data(), static_cast<std::uint32_t>(shape.size())));
  void* buffer = nullptr;
  const std::size_t row_bytes = first->token_bytes * (spec.token_level ? longest : 1);
  std::size_t bytes = 0;
  for (const Row& row : call.rows) {
    bytes += spec.item > 0 ? row_bytes : row.answer->Find(index)->Of(row.place, 1).size();
  }
  Place place;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &place.type, &place.id));
  // Where the client wants it in a GPU's memory, the rows are put together here and go there at once.
  const auto staged = place.on_host() ? Memory::Block() : own.Pinned(bytes);
  char* to = place.on_host() ? static_cast<char*>(buffer) : staged.get();
  for (const Row& row : call.rows) {
    const Answer::Output& part = *row.answer->Find(index);
    if (part.tail != first->tail) {
      return NewError(TRITONSERVER_ERROR_INTERNAL,
                      "output '" + spec.name + "' has other dimensions for other rows: the engines differ");
    }
    const std::string_view kept = part.Of(row.place, spec.token_level ? static_cast<std::size_t>(row.length) : 1);
    const std::size_t padding = spec.item > 0 ? row_bytes - kept.size() : 0;
    std::memcpy(to, kept.data(), kept.size());
    std::memset(to + kept.size(), 0, padding);
    to += kept.size() + padding;
  }
  return place.on_host() ? nullptr : own.Copy(buffer, place, staged.get(), Memory::PlaceOf(staged), bytes);
}

// How the answer came to be; the names are those of the gateway's answers.
TRITONSERVER_Error* WriteTiming(const Call& call, TimeNs now, TRITONBACKEND_Response* response) {
  std::int64_t level = 0;
  std::int64_t tokens = 0;
  std::int64_t demoted = 0;
  std::int64_t batch_rows = 0;
  TimeNs queue = 0;
  TimeNs execute = 0;
  for (const Row& row : call.rows) {
    level = std::max<std::int64_t>(level, row.engine);
    tokens += row.padded;
    demoted += row.demoted ? 1 : 0;
    batch_rows = std::max<std::int64_t>(batch_rows, row.batch_rows);
    queue = std::max(queue, row.started_ns - call.received_ns);
    execute = std::max(execute, row.ended_ns - row.started_ns);
  }
  const std::pair<const char*, std::int64_t> parameters[] = {
      {"level", level},
      {"queue_us", queue / 1000},
      {"execute_us", execute / 1000},
      {"total_us", (now - call.received_ns) / 1000},
      {"computed_tokens", tokens},
      {"demoted", demoted},
      {"batch_rows", batch_rows},
  };
  for (const auto& [name, value] : parameters) {
    ARLO_RETURN_IF_ERROR(TRITONBACKEND_ResponseSetIntParameter(response, name, value));
  }
  return nullptr;
}

TRITONSERVER_Error* WriteAnswer(const gateway::ModelSpec& model, const Memory& memory, const Call& call, TimeNs now,
                                TRITONBACKEND_Response* response) {
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    if ((call.outputs >> i & 1) != 0) ARLO_RETURN_IF_ERROR(WriteOutput(model, memory, call, i, response));
  }
  return WriteTiming(call, now, response);
}

}  // namespace

TRITONSERVER_DataType DatatypeOf(const std::string& name) {
  static constexpr std::pair<std::string_view, TRITONSERVER_DataType> kTypes[] = {
      {"BOOL", TRITONSERVER_TYPE_BOOL},     {"UINT8", TRITONSERVER_TYPE_UINT8},   {"UINT16", TRITONSERVER_TYPE_UINT16},
      {"UINT32", TRITONSERVER_TYPE_UINT32}, {"UINT64", TRITONSERVER_TYPE_UINT64}, {"INT8", TRITONSERVER_TYPE_INT8},
      {"INT16", TRITONSERVER_TYPE_INT16},   {"INT32", TRITONSERVER_TYPE_INT32},   {"INT64", TRITONSERVER_TYPE_INT64},
      {"FP16", TRITONSERVER_TYPE_FP16},     {"FP32", TRITONSERVER_TYPE_FP32},     {"FP64", TRITONSERVER_TYPE_FP64},
      {"BF16", TRITONSERVER_TYPE_BF16},     {"BYTES", TRITONSERVER_TYPE_BYTES}};
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return kInvalid;
}

TRITONSERVER_Error* ReadCall(const LogicalConfig& config, const Memory& memory, TimeNs now, Call* call) {
  call->received_ns = now;
  ARLO_RETURN_IF_ERROR(ReadInputs(config, memory, call));
  ARLO_RETURN_IF_ERROR(ReadOutputs(config.model, call));
  ARLO_RETURN_IF_ERROR(ReadClass(config, call));
  std::uint64_t timeout_us = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(call->request, &timeout_us));
  constexpr std::uint64_t kMostUs = 36'000'000'000;  // ten hours
  call->deadline_ns = now + (timeout_us == 0 ? config.model.default_timeout_ns
                                             : static_cast<TimeNs>(std::min(timeout_us, kMostUs)) * 1000);
  return nullptr;
}

void SendAnswer(const LogicalConfig& config, const Memory& memory, const Call& call, TimeNs now,
                TRITONSERVER_Error* refusal) {
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, call.request);
  if (error == nullptr) {
    error = refusal;
  } else if (refusal != nullptr) {
    TRITONSERVER_ErrorDelete(refusal);
  }
  if (error == nullptr && call.fault.code != Code::kOk) {
    error = NewError(CodeOf(call.fault.code), call.fault.message);
  }
  if (error == nullptr) error = WriteAnswer(config.model, memory, call, now, response);
  const bool good = error == nullptr;
  if (response != nullptr) {
    LogAndDelete(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  } else {
    LogAndDelete(error);
  }
  TimeNs started = kNever;
  for (const Row& row : call.rows) {
    if (row.started_ns != 0) started = std::min(started, row.started_ns);
  }
  if (started == kNever) started = now;
  const auto start = static_cast<std::uint64_t>(started);
  const auto end = static_cast<std::uint64_t>(std::max(now, started));
  LogAndDelete(TRITONBACKEND_ModelInstanceReportStatistics(call.instance, call.request, good, start, start, end,
                                                           static_cast<std::uint64_t>(std::max(now_ns(), now))));
}

bool GivenUp(const Call& call) {
  bool cancelled = false;
  TRITONSERVER_Error* const error = TRITONBACKEND_RequestIsCancelled(call.request, &cancelled);
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  return cancelled;
}

}  // namespace arlo::triton
