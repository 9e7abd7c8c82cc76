"""From slow ranks and costs to the verdict, the findings and the advice."""
