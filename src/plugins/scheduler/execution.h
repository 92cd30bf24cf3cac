// A batch as an inference request to an engine of the same server.
#ifndef ARLO_PLUGINS_SCHEDULER_EXECUTION_H_
#define ARLO_PLUGINS_SCHEDULER_EXECUTION_H_

#include <string>

#include "plugins/scheduler/call.h"
#include "plugins/scheduler/config.h"
#include "plugins/scheduler/desk.h"
#include "plugins/triton_api.h"

namespace arlo::triton {

// Puts what the engine answers into memory of the batch, which its responses are given as `userp`.
TRITONSERVER_Error* NewAllocator(TRITONSERVER_ResponseAllocator** allocator);

// Builds the request, with the rows padded as the engine needs. Where the batch is all of one client's request, and
// nothing has to be padded, the engine reads the client's own memory. Callbacks are the caller's to set.
TRITONSERVER_Error* MakeRequest(const LogicalConfig& config, TRITONSERVER_Server* server, Batch& batch,
                                TRITONSERVER_InferenceRequest** request);

// Reads the engine's answer into `batch.answer` or `batch.why`.
Reply ReadResponse(const LogicalConfig& config, TRITONSERVER_InferenceResponse* response, Batch& batch);

// Classifies an error of the server or of an engine. Does not own it.
Reply ReplyOf(TRITONSERVER_Error* error, bool refused);

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_EXECUTION_H_
