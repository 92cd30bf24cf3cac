// Errors of Triton's C API, as our backends make, pass on and end them.
#ifndef ARLO_PLUGINS_TRITON_ERRORS_H_
#define ARLO_PLUGINS_TRITON_ERRORS_H_

#include <string>

#include "plugins/triton_api.h"

#define ARLO_EXPORT __attribute__((visibility("default")))

#define ARLO_RETURN_IF_ERROR(call)                          \
  do {                                                      \
    if (TRITONSERVER_Error* error_ = (call)) return error_; \
  } while (false)

namespace arlo::triton {

inline TRITONSERVER_Error* NewError(TRITONSERVER_Error_Code code, const std::string& message) {
  return TRITONSERVER_ErrorNew(code, message.c_str());
}

inline void Log(TRITONSERVER_LogLevel severity, const std::string& message) {
  TRITONSERVER_Error* unlogged = TRITONSERVER_LogMessage(severity, __FILE__, __LINE__, message.c_str());
  if (unlogged != nullptr) TRITONSERVER_ErrorDelete(unlogged);
}

// Logs and deletes an error that can no longer be returned to a caller.
inline void LogAndDelete(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  Log(TRITONSERVER_LOG_ERROR, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

// Reads the model's configuration as JSON.
inline TRITONSERVER_Error* ReadConfig(TRITONBACKEND_Model* model, std::string* text) {
  TRITONSERVER_Message* message = nullptr;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* json = nullptr;
  size_t bytes = 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &json, &bytes);
  if (error == nullptr) text->assign(json, bytes);
  LogAndDelete(TRITONSERVER_MessageDelete(message));
  return error;
}

// The backend API's major version must be the one that triton_api.h declares.
inline TRITONSERVER_Error* CheckApi(const std::string& who) {
  uint32_t major = 0;
  uint32_t minor = 0;
  ARLO_RETURN_IF_ERROR(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == 1) return nullptr;
  return NewError(TRITONSERVER_ERROR_UNSUPPORTED, who + ": made for Triton's backend API 1.x, this server has " +
                                                      std::to_string(major) + "." + std::to_string(minor));
}

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_TRITON_ERRORS_H_
