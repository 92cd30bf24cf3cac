// The roots of a simulated pipeline: the children that visits make at each edge, and where they go (src/flow/pipeline).
#pragma once

#include <cstdint>
#include <vector>

#include "dispatch/scheduler.h"
#include "flow/pipeline/pipeline.h"
#include "simulate/engine.h"
#include "simulate/requests.h"

namespace arlo::simulate {

class Roots {
 public:
  // A root that has ended: the engine concludes its request.
  struct Ended {
    Slot slot;
    bool failed;
  };

  // Throws std::invalid_argument, naming the field.
  Roots(Pipeline pipeline, dispatch::Scheduler& scheduler, dispatch::Actions& actions, Requests& requests,
        TimeNs warmup);

  void plan(const flow::pipeline::Plan& plan, TimeNs now) { pipeline_.apply(plan, now); }

  // A request has arrived, an answer after `due` is late, and one after `deadline` worth nothing.
  void arrive(Slot slot, TimeNs due, TimeNs deadline, TimeNs now);
  // A visit has ended, and its slot is free afterwards. The scheduler already knows.
  void answered(Slot slot, TimeNs now);
  void expired(Slot slot, TimeNs now);
  void failed(Slot slot, TimeNs now);
  // Visits that no worker fits any more choose again.
  void find_ways(TimeNs now);
  // No more visits can be served.
  void give_up(TimeNs now);

  [[nodiscard]] TimeNs deadline() const { return given_.deadline; }
  [[nodiscard]] double price(std::int32_t variant) const { return pipeline_.price(variant); }

  std::vector<Ended> ended;  // to be taken by the engine after each call
  PipelineTotals totals;

 private:
  void walk(TimeNs now);
  void enter(const flow::pipeline::Step& step, TimeNs now);
  void join(const flow::pipeline::Step& step, TimeNs now);
  void exit(const flow::pipeline::Step& step);
  void check_rows() const;
  void count_leaf(Slot root, flow::pipeline::Node node, double accuracy, double part, TimeNs now);
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
  [[nodiscard]] bool counts(Slot root) const { return requests_[root].arrived >= warmup_; }

  Pipeline given_;
  dispatch::Scheduler& scheduler_;
  dispatch::Actions& actions_;
  Requests& requests_;
  flow::pipeline::Pipeline pipeline_;
  TimeNs warmup_;
  std::vector<Slot> slot_of_visit_;
  std::vector<TimeNs> due_;         // [slots], of roots
  std::vector<double> mean_count_;  // [edges]; 1 where there are no counts
  std::vector<flow::pipeline::RootId> root_of_slot_;
  std::vector<flow::pipeline::Children> made_;
  struct Share {
    double served = 0;
    double right = 0;
  };
  std::vector<Share> share_;  // [slots], of roots: of their worth
  std::vector<std::int32_t> taken_;
  std::vector<double> scores_;
};

}  // namespace arlo::simulate
