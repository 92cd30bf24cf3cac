// A client's request as Triton hands it over: read into a Call, and answered.
#ifndef ARLO_PLUGINS_SCHEDULER_CLIENT_H_
#define ARLO_PLUGINS_SCHEDULER_CLIENT_H_

#include "plugins/scheduler/call.h"
#include "plugins/scheduler/config.h"
#include "plugins/triton_api.h"

namespace arlo::triton {

// Triton's datatype of a name of the KServe protocol; TRITONSERVER_TYPE_INVALID: none.
TRITONSERVER_DataType DatatypeOf(const std::string& name);

// Fills in all but the rows. Returns the error for the client.
TRITONSERVER_Error* ReadCall(const LogicalConfig& config, const Memory& memory, TimeNs now, Call* call);

// Sends the answer, the fault, or `refusal` (which it deletes) to a request that became no call, and reports it to
// Triton's statistics. No lock is held.
void SendAnswer(const LogicalConfig& config, const Memory& memory, const Call& call, TimeNs now,
                TRITONSERVER_Error* refusal = nullptr);

// The client gave up.
bool GivenUp(const Call& call);

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_SCHEDULER_CLIENT_H_
