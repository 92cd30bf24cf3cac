// The roots of a simulated pipeline: the children that visits make at each edge, and where they go (src/flow/pipeline).
#pragma once

#include <cstdint>
#include <vector>

#include "flow/pipeline/pipeline.h"
#include "simulate/rows.h"

namespace arlo::simulate {

class Roots final : public Rows {
 public:
  // Throws std::invalid_argument, naming the field.
  Roots(Core& core, Pipeline pipeline);

  void plan(const flow::pipeline::Plan& plan) { pipeline_.apply(plan, c_.now); }

  [[nodiscard]] bool goes_on() const override { return true; }
  void arrive(Slot slot) override;
  // Of visits, whose slots are free afterwards.
  void answered(Slot slot) override;
  void unanswered(Slot slot, Outcome outcome, flow::Reason reason) override;
  void find_ways() override;
  void give_up() override;

  PipelineTotals totals;

 private:
  // Of a request, by its slot; and what was served of its worth.
  struct Root {
    TimeNs due = 0;
    flow::pipeline::RootId id = 0;
    double served = 0;
    double right = 0;
  };
  struct Ended {
    Slot slot;
    bool failed;
  };
  void walk();
  void enter(const flow::pipeline::Step& step);
  void join(const flow::pipeline::Step& step);
  void exit(const flow::pipeline::Step& step);
  // The roots that ended in the walks.
  void conclude_ended();
  void count_leaf(Slot root, flow::pipeline::Node node, double accuracy, double part);
  // Of its root's recorded row.
  [[nodiscard]] std::size_t row(Slot root) const;
  [[nodiscard]] bool right(Slot root, flow::pipeline::Node node) const;
  // Finds a visit's edges, by number among those of its stage, from the records; false: there are none.
  bool recorded_edges(Slot root, flow::pipeline::VisitId visit);
  // Returns the number of children that an edge, by its number, makes of a row that takes it.
  [[nodiscard]] std::int32_t children(std::size_t number, std::size_t variant, Slot root, std::uint64_t luck) const;
  [[nodiscard]] std::int32_t length(const Pipeline::Edge& edge, std::int32_t parent, std::uint64_t luck) const;
  // The visit of a slot, which has none from now on.
  flow::pipeline::VisitId leave(Slot slot);
  [[nodiscard]] bool counts(Slot root) const { return c_.requests[root].arrived >= c_.options.warmup; }

  Pipeline given_;
  flow::pipeline::Pipeline pipeline_;
  std::vector<Slot> slot_of_visit_;
  std::vector<Root> roots_;
  std::vector<Ended> ended_;
  std::vector<double> mean_count_;  // [edges]; 1 where there are no counts
  std::vector<flow::pipeline::Children> made_;
  std::vector<std::int32_t> taken_;
  std::vector<double> scores_;
};

}  // namespace arlo::simulate
