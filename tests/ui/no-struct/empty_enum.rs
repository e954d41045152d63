use queuert::JobTypes;

#[derive(JobTypes)]
enum Onboarding {}

fn main() {}
