{{- define "rollcall.labels" -}}
app.kubernetes.io/name: rollcall
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rollcall.tokenSecret" -}}
{{ .Values.token.existingSecret | default (printf "%s-token" .Release.Name) }}
{{- end }}

{{- define "rollcall.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-shared" .Release.Name) }}
{{- end }}

{{- define "rollcall.mount" -}}
{{ .Values.storage.mountPath | default "/shared" | trimSuffix "/" }}
{{- end }}

{{- define "rollcall.runDir" -}}
{{- $mount := include "rollcall.mount" . -}}
{{- if not (hasPrefix (printf "%s/" $mount) (printf "%s/" .Values.storage.runDir)) -}}
{{- fail (printf "storage.runDir %s is not below storage.mountPath %s" .Values.storage.runDir $mount) -}}
{{- end -}}
{{ .Values.storage.runDir }}
{{- end }}

{{- /* The name by which the other pods reach the head; LeaderWorkerSet gives it by a variable. */ -}}
{{- define "rollcall.headAddress" -}}
{{- if eq .Values.kind "indexed-job" -}}
{{ .Release.Name }}-0.{{ .Release.Name }}
{{- else if eq .Values.kind "jobset" -}}
{{ .Release.Name }}-node-0-0.{{ .Release.Name }}
{{- end -}}
{{- end }}

{{- /* Of an Indexed Job, and of the Job in a JobSet. Exit codes that podFailurePolicy does not name count
towards backoffLimit: an unreachable node (69), the run directory (73), a temporary error (75), an unfit machine (76). */ -}}
{{- define "rollcall.jobSpec" -}}
completionMode: Indexed
completions: {{ .Values.nodes }}
parallelism: {{ .Values.nodes }}
backoffLimit: {{ .Values.backoffLimit }}
# A pod is replaced when it has ended, not while it still saves: never two heads.
podReplacementPolicy: Failed
# The head's end is the run's end.
successPolicy:
  rules:
    - succeededIndexes: "0"
podFailurePolicy:
  rules:
    # The node is drained, preempted or gone.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    # Wrong settings (64), the restart budget is used up (70), a wrong token (77): another pod would end
    # in the same way.
    - action: FailJob
      onExitCodes:
        containerName: rollcall
        operator: In
        values: [64, 70, 77]
    # Stopped after a save (143): its replacement resumes. After `rollcall stop` it ends with 0.
    - action: Ignore
      onExitCodes:
        containerName: rollcall
        operator: In
        values: [143]
{{- end }}

{{- define "rollcall.pod" -}}
metadata:
  labels:
    {{- include "rollcall.labels" . | nindent 4 }}
    {{- with .Values.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if eq .Values.kind "leader-worker-set" }}
  restartPolicy: Always
  {{- else }}
  restartPolicy: Never
  {{- end }}
  {{- if eq .Values.kind "indexed-job" }}
  subdomain: {{ .Release.Name }}
  {{- end }}
  terminationGracePeriodSeconds: {{ add .Values.graceSeconds 35 }}
  # Kubernetes' variables for each service of the namespace are of no use, and some begin with ROLLCALL_.
  enableServiceLinks: false
  automountServiceAccountToken: false
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- else }}
  affinity:
    # One node of the cluster on one machine.
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "rollcall.labels" . | nindent 14 }}
  {{- end }}
  containers:
    - name: rollcall
      image: {{ .Values.image }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      args:
        {{- toYaml .Values.job | nindent 8 }}
      env:
        {{- with include "rollcall.headAddress" . }}
        - name: ROLLCALL_HEAD_ADDRESS
          value: {{ . }}
        {{- end }}
        {{- if ne .Values.kind "leader-worker-set" }}
        # Of the first pod: it is the head, and waits for the others.
        - name: EXPECTED_WORKERS
          value: {{ sub (sub .Values.nodes 1) .Values.spares | quote }}
        {{- end }}
        {{- if .Values.spares }}
        - name: ROLLCALL_SPARE_WORKERS
          value: {{ .Values.spares | quote }}
        {{- end }}
        - name: ROLLCALL_NODE_ADDRESS
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: ROLLCALL_RUN_DIR
          value: {{ include "rollcall.runDir" . | quote }}
        - name: ROLLCALL_TOKEN_FILE
          value: /run/secrets/rollcall/token
        - name: ROLLCALL_GRACE_SECONDS
          value: {{ printf "%ds" (int .Values.graceSeconds) | quote }}
        # `rollcall stop` ends the run: pods that {{ .Values.kind }} makes after it do not resume.
        - name: ROLLCALL_START_ID
          valueFrom: {fieldRef: {fieldPath: {{ include "rollcall.startId" . | quote }}}}
        - name: ROLLCALL_PREEMPT_FILE
          value: /tmp/rollcall-notice/preempted
        - name: ROLLCALL_NUM_GPUS
          value: {{ .Values.gpus.count | quote }}
        - name: HF_HOME
          value: {{ printf "%s/huggingface" (include "rollcall.mount" .) | quote }}
        {{- range $name, $value := .Values.env }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: ray, containerPort: {{ .Values.env.ROLLCALL_RAY_PORT | default 6379 }}}
        - {name: dashboard, containerPort: {{ .Values.env.ROLLCALL_DASHBOARD_PORT | default 8265 }}}
        - {name: control, containerPort: {{ include "rollcall.controlPort" . }}}
      resources:
        requests:
          {{- toYaml .Values.resources.requests | nindent 10 }}
        limits:
          {{- with .Values.resources.limits }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          {{- if .Values.gpus.count }}
          {{ .Values.gpus.resource }}: {{ .Values.gpus.count }}
          {{- end }}
          {{- with .Values.extraResources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      # The head is ready when its control port answers, a worker when its Ray has begun to listen.
      readinessProbe:
        exec:
          command: ["bash", "-c", {{ include "rollcall.ready" . | quote }}]
        periodSeconds: 10
        timeoutSeconds: 5
      # Only a control port that listens and does not answer is a failure: a worker has none, nor has a
      # head that still examines its machine. Four minutes, for a machine under load.
      livenessProbe:
        exec:
          command: ["bash", "-c", {{ include "rollcall.live" . | quote }}]
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 16
      lifecycle:
        # The reason for the stop is then on record: the machine is taken away. SIGTERM follows.
        preStop:
          exec:
            command: ["touch", "/tmp/rollcall-notice/preempted"]
      volumeMounts:
        - {name: shared, mountPath: {{ include "rollcall.mount" . | quote }}}
        - {name: shm, mountPath: /dev/shm}
        # What Ray and compilers write.
        - {name: tmp, mountPath: /tmp}
        - {name: token, mountPath: /run/secrets/rollcall, readOnly: true}
  volumes:
    - name: shared
      persistentVolumeClaim:
        claimName: {{ include "rollcall.claim" . }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ .Values.shmSize }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.tmpSize }}
    - name: token
      secret:
        secretName: {{ include "rollcall.tokenSecret" . }}
        defaultMode: 0440
{{- end }}

{{- /* What makes the pods: the uid of the Job; of a LeaderWorkerSet the pod, whose containers start again. */ -}}
{{- define "rollcall.startId" -}}
{{ ternary "metadata.uid" "metadata.labels['batch.kubernetes.io/controller-uid']" (eq .Values.kind "leader-worker-set") }}
{{- end }}

{{- define "rollcall.controlPort" -}}
{{ .Values.env.ROLLCALL_CONTROL_PORT | default 8267 }}
{{- end }}

{{- define "rollcall.health" -}}
printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; read -r _ status _ <&3; [ "$status" = 200 ]
{{- end }}

{{- define "rollcall.ready" -}}
if [ "${JOB_COMPLETION_INDEX:-${LWS_WORKER_INDEX:-0}}" = 0 ]; then exec 3<>"/dev/tcp/${ROLLCALL_BIND:-127.0.0.1}/${ROLLCALL_CONTROL_PORT:-8267}" && {{ include "rollcall.health" . }}; else ports=${ROLLCALL_WORKER_PORTS:-10002}; exec 3<>"/dev/tcp/127.0.0.1/${ports%%[ -]*}"; fi
{{- end }}

{{- define "rollcall.live" -}}
exec 3<>"/dev/tcp/${ROLLCALL_BIND:-127.0.0.1}/${ROLLCALL_CONTROL_PORT:-8267}" || exit 0; {{ include "rollcall.health" . }}
{{- end }}
