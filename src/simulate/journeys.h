// The rows of a simulated cascade: their answers at each stage, and where they go next.
#pragma once

#include <cstdint>
#include <utility>

#include "flow/cascade/cascade.h"
#include "flow/cascade/price.h"
#include "simulate/accounts.h"
#include "simulate/checks.h"

namespace arlo::simulate {

class Journeys {
 public:
  // Throws std::invalid_argument, naming the field.
  explicit Journeys(Cascade cascade) : cascade_(std::move(cascade)) {
    const std::size_t stages = cascade_.variants.size();
    spec_.stages.resize(stages);
    spec_.labels = 1;
    flow::validate(spec_);
    flow::validate(cascade_.rules, spec_);
    need(cascade_.rows > 0, "rows: there are no records");
    need(cascade_.confidence.size() == cascade_.rows * stages, "confidence: must be [rows, stages]");
    need(cascade_.tokens.empty() || cascade_.tokens.size() == cascade_.confidence.size(),
         "tokens: must be [rows, stages]");
    for (const auto variant : cascade_.variants) need(variant < dispatch::kVariants, "variants: out of range");
  }

  [[nodiscard]] std::int32_t stages() const { return static_cast<std::int32_t>(cascade_.variants.size()); }
  [[nodiscard]] dispatch::VariantId variant(std::int32_t stage) const {
    return cascade_.variants[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const Cascade& cascade() const { return cascade_; }

  // Returns the stage where a row begins; -1: there is none.
  [[nodiscard]] std::int32_t entry(flow::StageSet present) const {
    const std::int32_t stage = flow::entry(present, cascade_.rules.start, stages());
    return stage < 0 ? flow::entry(present, 0, stages()) : stage;
  }

  // Tokens of a row at a stage that it goes on to.
  [[nodiscard]] std::int32_t tokens(const Request& request, std::int32_t stage) const {
    if (cascade_.tokens.empty()) return request.whole;
    const std::int32_t pruned = cascade_.tokens[at(request, stage)];
    return pruned > 0 ? std::min(pruned, request.whole) : request.whole;
  }

  // After the stage that the row is at.
  [[nodiscard]] flow::Decision decide(const Request& request, std::int32_t stage, flow::StageSet present,
                                      std::int32_t price) const {
    flow::RowFacts facts;
    facts.seed = cascade_.seed;
    facts.row = request.number;
    facts.length = request.whole;
    return flow::decide(spec_, cascade_.rules, stage, cascade_.confidence[at(request, stage)], facts, present, price);
  }

  // In force: 0 where it does not follow the load.
  [[nodiscard]] std::int32_t price_now() const { return cascade_.auto_price ? price.now() : 0; }

  flow::Price price;

 private:
  [[nodiscard]] std::size_t at(const Request& request, std::int32_t stage) const {
    return (request.number % cascade_.rows) * cascade_.variants.size() + static_cast<std::size_t>(stage);
  }

  Cascade cascade_;
  flow::CascadeSpec spec_;
};

}  // namespace arlo::simulate
