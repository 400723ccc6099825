//! Objects that several tests use.

/// A Deployment and its Service, as people write them.
pub const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: { app: web, tier: front }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers:
      - name: echo
        image: signpost/echo
        args: ["--port", "8080"]
        env:
        - { name: A, value: "1" }
        - { name: B, value: "2" }
        ports:
        - { name: http, containerPort: 8080 }
        resources: { requests: { cpu: 500m, memory: 1Gi } }
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: { app: web }
  ports:
  - { name: http, port: 80, targetPort: http }
  - { name: dns, port: 53, protocol: UDP }
"#;
