// A cascade as the desk runs it: built from a deployment, checked once, then immutable and shared.
#pragma once

#include <arlo/v1/admin.pb.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "base/time.h"
#include "dispatch/scheduler.h"
#include "flow/cascade/cascade.h"
#include "rewrite/model.h"
#include "rewrite/request.h"

namespace arlo::gateway {

struct Cascade {
  struct Point {
    std::string name;
    flow::Rules rules;
    bool prunes = false;
    std::optional<double> accuracy;  // expected
  };
  // Indexes in the cascade's ModelSpec::outputs; -1: it has no such output.
  struct Outputs {
    int logits = -1;
    int end_logits = -1;
    int importance = -1;
    int confidence = -1;  // computed by a stage
    // Computed by the gateway.
    int probabilities = -1;
    int stage = -1;
    int sureness = -1;
    int reason = -1;
  };
  struct Stage {
    std::shared_ptr<const ModelSpec> model;
    std::size_t wording = 0;           // InferRequest::in()
    std::vector<std::int32_t> levels;  // maximum lengths of its runtimes; empty: its time depends on tokens
    OutputSet has = 0;                 // subset of the cascade's outputs
    OutputSet always = 0;              // those needed for decisions
  };

  flow::CascadeSpec spec;
  std::vector<std::string> labels;  // names for clients; empty: their number varies
  std::vector<Stage> stages;
  std::vector<Point> points;
  std::size_t point = 0;  // in force
  Outputs outputs;
  OutputSet made = 0;  // outputs computed here, never requested from a worker
  std::uint64_t version = 0;
  std::uint64_t seed = 0;  // of the soft rule
  TimeNs margin = 0;       // a row with an answer ends with it this long before its deadline
  bool expire = false;
  bool fail = false;
  bool auto_price = false;
  double shadow_share = 0;
  double shadow_max_busy = 0;
  double drift_epsilon = 0;
  std::size_t content = 0;  // hash of the whole definition

  // The outputs to request from a stage for a client's request.
  [[nodiscard]] OutputSet asks(std::size_t stage, OutputSet client) const {
    return (client & ~made & stages[stage].has) | stages[stage].always;
  }
  // -1: no point has this name.
  [[nodiscard]] int find_point(std::string_view name) const;
  // The choices for a client: 'ap', 'eo', 'first', 'last'.
  [[nodiscard]] std::string choices() const;
  // Checks a client's wishes; the fault names the error.
  [[nodiscard]] MaybeFault check(const CascadeWishes& wishes) const;
};

// Finds a model of the deployment by its name; null: none.
using FindModel = std::function<std::shared_ptr<const ModelSpec>(const std::string& name)>;

// Checks a cascade and builds the model that clients see. Throws std::invalid_argument, which names the field.
std::shared_ptr<const ModelSpec> make_cascade(const v1::Deployment& deployment, const v1::Cascade& from,
                                              const FindModel& find, dispatch::VariantId variant);

}  // namespace arlo::gateway
