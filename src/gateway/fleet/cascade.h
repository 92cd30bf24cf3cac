// A cascade as the desk runs it: made of a deployment, checked once, then immutable and shared.
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
  // Where outputs stand in ModelSpec::outputs of the cascade; -1: it has none such.
  struct Outputs {
    int logits = -1;
    int end_logits = -1;
    int importance = -1;
    int confidence = -1;  // a stage's own
    // Made here.
    int probabilities = -1;
    int stage = -1;
    int sureness = -1;
    int reason = -1;
  };
  struct Stage {
    std::shared_ptr<const ModelSpec> model;
    std::size_t wording = 0;           // InferRequest::in()
    std::vector<std::int32_t> levels;  // maximum lengths of its runtimes; empty: its time goes by tokens
    OutputSet has = 0;                 // of the cascade's outputs
    OutputSet always = 0;              // of these, what decides
  };

  flow::CascadeSpec spec;
  std::vector<std::string> labels;  // names, for clients; empty: their number varies
  std::vector<Stage> stages;
  std::vector<Point> points;
  std::size_t point = 0;  // in force
  Outputs outputs;
  OutputSet made = 0;  // outputs that no worker is asked for
  std::uint64_t version = 0;
  std::uint64_t seed = 0;  // of the soft rule
  TimeNs margin = 0;       // before its deadline a row with an answer ends with it
  bool expire = false;
  bool fail = false;
  bool auto_price = false;
  double shadow_share = 0;
  double shadow_max_busy = 0;
  double drift_epsilon = 0;
  std::size_t content = 0;  // hash of all that it is

  // What a stage is asked for, of a client's request.
  [[nodiscard]] OutputSet asks(std::size_t stage, OutputSet client) const {
    return (client & ~made & stages[stage].has) | stages[stage].always;
  }
  // -1: there is none of this name.
  [[nodiscard]] int find_point(std::string_view name) const;
  // What a client may ask for: 'ap', 'eo', 'first', 'last'.
  [[nodiscard]] std::string choices() const;
  // What is wrong with a client's wishes.
  [[nodiscard]] MaybeFault check(const CascadeWishes& wishes) const;
};

// A model of the deployment, by its name; null: there is none.
using FindModel = std::function<std::shared_ptr<const ModelSpec>(const std::string& name)>;

// The fault names the field and what is wrong with it.
MaybeFault check_cascade(const v1::Cascade& cascade, const FindModel& model);

// The model that clients see, of what has been checked.
std::shared_ptr<const ModelSpec> make_cascade(const v1::Deployment& deployment, const v1::Cascade& from,
                                              const FindModel& model, dispatch::VariantId variant);

}  // namespace arlo::gateway
